"""The cost of Grace itself, in torch and in other toolkits: ``python -m benchmarks.overhead``."""
