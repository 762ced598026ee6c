"""Measurements for those who work on Grace itself: what its parts should reach, and whether a change made them slower."""
