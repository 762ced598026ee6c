"""Where the floor of a step is, by experiment: ``python -m benchmarks.ladder``."""
