"""Large rows in pieces that stay in the cache: temporary memory is small, whatever the size of the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Span", "split_spans"]

CHUNK = 1 << 17  # about as many numbers in a piece: smaller ones cost more in calls, larger ones leave the cache
_GROUP = 40  # a piece starts at a whole byte, for bits and for trits


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers [start, stop) of row ``row``, out of rows of n numbers: whole blocks, and whole bytes of packed codes."""

    row: int
    start: int
    stop: int
    n: int
    block: int

    @property
    def columns(self) -> slice:
        """Columns of the span's numbers in their row."""
        return slice(self.start, self.stop)

    @property
    def blocks(self) -> slice:
        """Blocks of the row that the span has."""
        return slice(self.start // self.block, math.ceil(self.stop / self.block))

    @property
    def first(self) -> int:
        """The position of the first number among those of all rows: where its random numbers start."""
        return self.row * self.n + self.start

    def bits(self, bits: int) -> slice:
        """The bytes of their codes of ``bits`` bits."""
        return slice(self.start * bits // 8, math.ceil(self.stop * bits / 8))

    @property
    def trits(self) -> slice:
        """The bytes of their codes in base 3."""
        return slice(self.start // 5, math.ceil(self.stop / 5))

    def __len__(self) -> int:
        return self.stop - self.start


def split_spans(rows: int, n: int, block: int = 1) -> Iterator[Span]:
    """The pieces of ``rows`` rows of n numbers, in order."""
    unit = math.lcm(max(1, min(block, n)), _GROUP)
    size = max(1, CHUNK // unit) * unit
    for row in range(rows):
        for start in range(0, n, size):
            yield Span(row, start, min(n, start + size), n, block)
