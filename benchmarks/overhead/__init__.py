"""What Grace itself costs, in torch and in other toolkits: ``python -m benchmarks.overhead``."""
