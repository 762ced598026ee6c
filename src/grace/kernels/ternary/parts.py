"""Parts of the wires of shortened runs, and their positions in a bucket once their widths are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grace.kernels.blocks import block_count
from grace.kernels.packing import packed_trits_bytes
from grace.kernels.variable_sparse.parts import WirePlaces

HEAD = 8  # bytes of the scale and the count
LONGEST = 14  # bytes of zeros that become one


@dataclass(frozen=True)
class QuarticCode:
    """s: the sparsity, in [1, 2): the scale is s times the largest magnitude."""

    s: float


class QuarticPlaces(WirePlaces):
    """Positions of the wires of T tensors in the messages of W workers.

    Args:
        widths, own: as for :class:`grace.kernels.variable_sparse.parts.WirePlaces`. sizes: the n of each tensor. code: of the
        wires.

    Raises:
        PayloadError: a width that no sender writes.
    """

    def __init__(self, widths: Sequence[Sequence[int]], own: int, sizes: Sequence[int], code: QuarticCode):
        full = [packed_trits_bytes(n) for n in sizes]
        super().__init__(widths, own, [HEAD + block_count(L, LONGEST) for L in full], [HEAD + L for L in full])
