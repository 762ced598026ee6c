"""Tiles, in which Triton kernels go through a row, of which a thread reads and writes 16 bytes at a time; what belongs to the
blocks of numbers in a tile; and codes that lie side by side.
"""
