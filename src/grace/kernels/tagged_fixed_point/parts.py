"""Code of tagged numbers, and positions of the wires of a bucket once their widths are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grace.kernels.packing import packed_bytes
from grace.kernels.variable_sparse.parts import WirePlaces

WIDE = 15  # fractional bits under tag 2


@dataclass(frozen=True)
class TaggedCode:
    """p: the error is at most 2**-p units, 6 to 14. relative: whether the unit is the power of two at or above max |x|, whose
    exponent travels; else it is 1.
    """

    p: int
    relative: bool

    @property
    def middle(self) -> int:
        """Numbers of at least ``2**-middle`` units have tag 2."""
        return self.p // 2

    @property
    def narrow(self) -> int:
        """Fractional bits under tag 1."""
        return 7 + self.middle

    def fixed(self, n: int) -> int:
        """Bytes of the exponent and the tags of n numbers."""
        return int(self.relative) + packed_bytes(n, 2)


class TaggedPlaces(WirePlaces):
    """Positions of the wires of T tensors in the messages of W workers.

    Args:
        widths, own: as for :class:`grace.kernels.variable_sparse.parts.WirePlaces`. sizes: the n of each tensor. code: of the
        wires.

    Raises:
        PayloadError: a width that no sender writes.
    """

    def __init__(self, widths: Sequence[Sequence[int]], own: int, sizes: Sequence[int], code: TaggedCode):
        fixed = [code.fixed(n) for n in sizes]
        super().__init__(widths, own, fixed, [size + 4 * n for size, n in zip(fixed, sizes, strict=True)])
