"""Rows as the kernels of selection see them: in tiles, whose numbers that may be selected are noted."""
