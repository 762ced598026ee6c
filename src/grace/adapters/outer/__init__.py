"""Outer loops: each rank trains a replica of its own, and at times the ranks exchange how far the replicas have moved."""
