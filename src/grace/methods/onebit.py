from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import out_of_range
from grace.kernels import block_count, block_sizes, block_sum, pack, packed_bytes, spread, unpack
from grace.method import Compressor, Facts
from grace.random import Stream
from grace.registry import register


@register("onebit", communicator="allgather", memory="residual", family="quantization", aliases=("onebitcompressor",))
@dataclass(frozen=True, slots=True)
class OneBit(Compressor):
    """1-bit SGD: one bit says on which side of a threshold a number lies, and stands for the mean of that side.

    ``C(x)_i = hi if x_i >= tau, else lo``, with hi and lo the means of the numbers of the group on either side

    Args:
        tau: the threshold, finite, in gradient units.
        group: elements that share the two means, >= 1.
    Wire:
        lo and hi (float32) for each group, then n bits: n + 64 ceil(n/group) bits, one round.
    Bias:
        biased; an orthogonal projection, so that the sum of a group is kept. With tau = 0 delta = |x|_1^2/(B |x|_2^2),
        at least 1/B, in each group. Exact for groups of two values on different sides.
    Differs from the paper:
        groups are contiguous; the paper's are the columns of a weight matrix. The paper's own exchange is
        ``communicator=scatterreduce``, its memory is the default.
    Example:
        >>> method("onebit:group=512,communicator=scatterreduce")
        ErrorFeedback(method=ScatterReduce(compressor=OneBit(tau=0.0, group=512)), beta=1.0, gamma=1.0)

    Reference:
        Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
        Distributed Training of Speech DNNs", Interspeech 2014.
    """

    tau: float = 0.0
    group: int = 1024

    def __post_init__(self) -> None:
        if not math.isfinite(self.tau):
            raise out_of_range("onebit", "tau", self.tau, "a finite number")
        if not (isinstance(self.group, int) and self.group >= 1):
            raise out_of_range("onebit", "group", self.group, "a whole number >= 1")

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        high = rows >= self.tau
        count = block_sum(high, self.group)  # [b, nb], how many are on the upper side
        sizes = block_sizes(rows.shape[1], self.group, rows)
        upper = block_sum(torch.where(high, rows, 0.0), self.group) / count.clamp_min(1)
        lower = block_sum(torch.where(high, 0.0, rows), self.group) / (sizes - count).clamp_min(1)
        wire = wires.join(lower.float(), upper.float(), pack(high, 1))
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n, groups = out.shape[1], block_count(out.shape[1], self.group)
        fields = [("lo", torch.float32, groups), ("hi", torch.float32, groups)]
        lower, upper, packed = wires.split(wire, [*fields, ("bits", torch.uint8, packed_bytes(n, 1))])
        for (name, _, _), mean in zip(fields, (lower, upper), strict=True):
            wires.checked_scale(name, mean.abs())
        high = unpack(packed, 1, n).bool()
        out.add_(torch.where(high, spread(upper, n, self.group), spread(lower, n, self.group)), alpha=scale)

    def facts(self, n: int) -> Facts:
        # with another threshold a side may hold numbers of both signs, whose mean is 0
        delta = 1 / min(n, self.group) if self.tau == 0 else 0.0
        return Facts(contraction=delta, payload=8 * block_count(n, self.group) + packed_bytes(n, 1))
