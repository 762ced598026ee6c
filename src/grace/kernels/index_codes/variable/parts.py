"""Fields of wires of pairs whose places travel as gaps, and their positions in a bucket once their widths are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grace.kernels.index_codes.codes import most
from grace.kernels.index_codes.gaps import delta_head, rice_head
from grace.kernels.packing import packed_bytes
from grace.kernels.sparse.parts import ScaledCodes, value_bytes
from grace.kernels.variable_sparse.parts import WirePlaces


@dataclass(frozen=True)
class GapLists:
    """The lists of the rows of a bucket.

    kept: of each row k, 0 if it has no list. index: their code, delta or rice. before: bytes of its wire in front of the code.
    """

    kept: tuple[int, ...]
    index: str
    before: tuple[int, ...]

    @property
    def begins(self) -> tuple[int, ...]:
        """Offset in bytes of each row's fields before the code, among those of all rows."""
        return tuple(itertools.accumulate(self.before, initial=0))[:-1]

    def heads(self, sizes: Sequence[int]) -> list[int]:
        """Bytes of the code of each row of n numbers whose count follows from k and n."""
        if self.index == "delta":
            return [delta_head(k) for k in self.kept]
        return [rice_head(n, k) if k else 0 for n, k in zip(sizes, self.kept, strict=True)]


@dataclass(frozen=True)
class GapPairs:
    """index: delta or rice. kept: how many of n numbers are sent, at least 1. narrow: whether values are bfloat16. grid: what
    they are instead of numbers.
    """

    index: str
    kept: Callable[[int], int]
    narrow: bool
    grid: ScaledCodes | None = None

    def lists(self, sizes: Sequence[int]) -> GapLists:
        """Parts of rows of so many numbers."""
        kept = tuple(map(self.kept, sizes))
        return GapLists(kept, self.index, tuple(value_bytes(k, self.narrow, self.grid) for k in kept))


class GapPlaces(WirePlaces):
    """Positions of the wires of T tensors in the messages of W workers.

    Args:
        widths, own: as for :class:`grace.kernels.variable_sparse.parts.WirePlaces`. sizes: the n of each tensor. code: of the
        wires.

    lists: of the tensors.

    Raises:
        PayloadError: a width that no sender writes.
    """

    def __init__(self, widths: Sequence[Sequence[int]], own: int, sizes: Sequence[int], code: GapPairs):
        self.lists = code.lists(sizes)
        rows = list(zip(sizes, self.lists.kept, self.lists.before, self.lists.heads(sizes), strict=True))
        unary = code.index == "rice"
        least = [before + head + (packed_bytes(k, 1) if unary else 0) for _, k, before, head in rows]
        super().__init__(widths, own, least, [before + most(n, k, code.index) for n, k, before, _ in rows])
