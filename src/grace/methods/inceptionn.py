"""INCEPTIONN: a network-centric co-design to accelerate training (Li et al., MICRO 2018).

Letters: a number's tag says how many bits it has: 0 none, 1 eight, 2 sixteen, 3 all thirty-two; r = ceil(p/2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Range
from grace.kernels.tagged_fixed_point import TaggedCode, choose_tagged_many
from grace.kernels.tagged_fixed_point.codes import add_tagged, write_tagged
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse import Chosen
from grace.random import Stream
from grace.registry import register


@register("inceptionn", communicator="allgather", family="quantization", cases=["", "p=6,relative=false", "p=14"])
@dataclass(frozen=True, slots=True)
class Inceptionn(Compressor):
    """INCEPTIONN: fixed-point numbers of 0, 8, 16 or 32 bits, as many as their size needs for an absolute error bound.

    ``C(x)_i = sgn(x_i) floor(|x_i| 2^f) / 2^f``, with f = 7 + p - r under tag 1 (|x_i| >= 2^-p) and 15 under tag 2
    (|x_i| >= 2^(r-p)); tag 0 (less than 2^-p) is 0, and tag 3 (at least 1) is x_i itself

    Args:
        p: the bound on the error is 2^-p; 6 to 14.
        relative: whether the bound is in units of 2^ceil(log2 max|x|), instead of gradient units.
    Wire:
        the exponent of the unit (int8, if relative), the tags, packed to 2 bits, then all 8-bit, 16-bit and 32-bit
        numbers: 2 n + 8 n1 + 16 n2 + 32 n3 bits. Data-dependent, so one more small round exchanges the sizes of
        all tensors of a bucket.
    Bias:
        biased towards zero; no error exceeds the number itself, nor 2^-p; absolute, so no delta.
    Differs from the paper:
        the scale of the 8 bits: the published one misses the bound, and so would p above 14. ``relative`` is new:
        today's gradients are far below 1.
    Example:
        >>> method("inceptionn:p=8")
        Allgather(compressor=Inceptionn(p=8, relative=True))

    Reference:
        Li, Park, Alian et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep
        Neural Networks", MICRO 2018, doi 10.1109/MICRO.2018.00023.
    """

    varies: ClassVar[bool] = True
    p: Annotated[int, Range(6, 14)] = 10
    relative: bool = True

    @property
    def counted(self) -> TaggedCode:
        return TaggedCode(self.p, self.relative)

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        wire = write_tagged(rows, self.counted)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        add_tagged(wire, out, scale, self.counted)

    def choose_many_(self, many: TensorList, rng: Stream, code: TaggedCode) -> Chosen:
        return choose_tagged_many(many.like, many, code)

    def facts(self, n: int) -> Facts:
        return Facts()
