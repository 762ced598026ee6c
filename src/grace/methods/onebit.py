"""1-bit SGD (Seide et al., Interspeech 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from grace.contract.compressor import Fused
from grace.contract.facts import Facts
from grace.contract.knobs import Count
from grace.kernels import (
    TensorList,
    block_count,
    encode_two_means,
    encode_two_means_many,
    packed_bytes,
    sum_two_means,
    sum_two_means_many,
)
from grace.random import Stream
from grace.registry import register


@register(
    "onebit",
    communicator="allgather",
    memory="residual",
    family="quantization",
    aliases=("1bit", "1bitsgd"),
    cases=["group=32", "group=7,tau=0.1", "group=16,communicator=scatterreduce,server_memory=true"],
)
@dataclass(frozen=True, slots=True)
class OneBit(Fused):
    """1-bit SGD: one bit says which side of a threshold a number is on, and stands for the mean of that side.

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
        ``communicator=scatterreduce``; its memory is the default.
    Example:
        >>> method("onebit:group=512,communicator=scatterreduce")
        ErrorFeedback(method=ScatterReduce(compressor=OneBit(tau=0.0, group=512)), beta=1.0, gamma=1.0)

    Reference:
        Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
        Distributed Training of Speech DNNs", Interspeech 2014.
    """

    handles_many: ClassVar[bool] = True
    tau: float = 0.0
    group: Count = 1024

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        return encode_two_means(rows, self.tau, self.group, memory, rest)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        sum_two_means(received, out, self.group, scale, add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_two_means_many(message, many, self.tau, self.group)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_two_means_many(rows, many, self.group, scale)

    def passes(self, n: int) -> int | None:
        return 2  # means are sums in a fixed order, before the first bit

    def facts(self, n: int) -> Facts:
        # with another threshold a side may hold numbers of both signs, whose mean is 0
        delta = 1 / min(n, self.group) if self.tau == 0 else 0.0
        return Facts(contraction=delta, payload=8 * block_count(n, self.group) + packed_bytes(n, 1))
