"""Orthonormal bases and unit rows on accelerators: a program for each matrix."""
