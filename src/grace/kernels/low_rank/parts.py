"""Sizes of the pieces in which products with a factor are added up."""

from __future__ import annotations

SPAN, PIECE = 1024, 256  # numbers of a row, and of a column
