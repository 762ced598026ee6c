"""The floor of a step, by experiment: ``python -m benchmarks.ladder``."""
