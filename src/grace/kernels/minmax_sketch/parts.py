"""Parts of the wires of sketched buckets, and their positions in a bucket once their widths are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace.kernels.index_codes.codes import most, varies
from grace.kernels.index_codes.fixed import FIXED
from grace.kernels.packing import packed_bytes
from grace.kernels.variable_sparse.parts import WirePlaces, fit_listed


@dataclass(frozen=True)
class MinMaxCode:
    """q, groups, rows, share: of quantile buckets, their groups, and the hash functions and cells of a sketch. sample: the
    share of more than 2^20 non-zeros that quantiles are taken from. index: a code of
    :data:`grace.kernels.index_codes.codes.CODES`.
    """

    q: int
    groups: int
    rows: int
    share: float
    sample: float
    index: str

    @property
    def total(self) -> int:
        """Number of groups, below zero and above."""
        return min(self.groups, self.q)

    @property
    def bits(self) -> int:
        """Bits of a group's number."""
        return (self.total - 1).bit_length()

    @property
    def gaps(self) -> bool:
        """True if the size of the code of places depends on them."""
        return varies(self.index)

    @property
    def number(self) -> int:
        """The code of places for kernels: its place in FIXED, or behind them; 4: of gaps."""
        return 4 if self.gaps else (*FIXED, "auto").index(self.index)

    @property
    def head(self) -> int:
        """Bytes in front of the groups: of the two counts and the means."""
        return 8 + 4 * self.q

    def before(self, k: int) -> int:
        """Bytes in front of the places of k numbers."""
        return self.head + packed_bytes(k, self.bits)

    def cells(self, n: int) -> int:
        """Number of cells that the sketches of n numbers have at most."""
        return self.rows * (math.ceil(self.share * n) + self.total + 1)

    def most(self, n: int) -> int:
        """Bytes of a wire of n numbers at most."""
        fewer = 2 * most(n, n, self.index) + 8  # fewer places may need more
        return self.before(n) + fewer + self.cells(n) + self.total


class MinMaxPlaces(WirePlaces):
    """Positions of the wires of T tensors in the messages of W workers.

    Args:
        widths, own: as for :class:`grace.kernels.variable_sparse.parts.WirePlaces`. sizes: the n of each tensor. code: of the
        wires.

    rooms, listed: int64 ``[W, T]``, for how many numbers of each wire there is room.

    Raises:
        PayloadError: a width that no sender writes.
    """

    def __init__(self, widths: Sequence[Sequence[int]], own: int, sizes: Sequence[int], code: MinMaxCode):
        super().__init__(widths, own, [code.head] * len(sizes), list(map(code.most, sizes)))
        bits = 8 * (np.array(self.widths, np.int64) - code.head)
        self.rooms = self.listed = fit_listed(bits, code.bits, np.array(sizes, np.int64))
