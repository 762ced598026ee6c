"""Quantile quantization, from SketchML (Jiang et al., SIGMOD 2018).

Letters: q buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from grace.contract.compressor import Fused
from grace.contract.facts import Facts
from grace.contract.knobs import Range, Share
from grace.flags.finite import Flag
from grace.kernels import (
    TensorList,
    encode_quantiles,
    encode_quantiles_many,
    quantile_bytes,
    sum_quantiles,
    sum_quantiles_many,
)
from grace.kernels.quantiles.samples import count_seen
from grace.random import Stream
from grace.registry import register


@register("sketch", communicator="allgather", memory="residual", family="hybrid", cases=["quantiles=8"])
@dataclass(frozen=True, slots=True)
class Sketch(Fused):
    """Quantile quantization: quantiles cut the numbers into q buckets of equal size; each number becomes its bucket's mean.

    ``C(x)_i = mean of bucket c_i``, where ``c_i = (number of edges <= x_i)`` and the edges are sorted x at the places
    ``floor(j n / q)``, j = 1 ... q-1, the one nearest to zero moved to zero

    Args:
        quantiles: q, 2 to 256.
        zero_edge: whether zero is an edge, so that no bucket mixes signs.
        sample: share of the elements that quantiles are taken from where there are more than 2^20 elements, in (0, 1].
    Wire:
        q means (float32), then codes, packed: n ceil(log2 q) + 32 q bits, one round.
    Bias:
        biased; a projection that keeps the sum: 1 - delta is the variance within buckets over the mean square;
        delta >= |x|_1^2 / (n |x|^2) >= 1/n with ``zero_edge``, else as little as 0. Exact for constants and for at most q
        different numbers with edges between them.
    Differs from the paper:
        this is what GRACE means by the name; for the paper's keys and sketch of codes see ``sketchml``. Quantiles are
        those of the numbers, not of a streaming sketch; means take the place of midpoints.
    Example:
        >>> method("sketch:quantiles=64").method
        Allgather(compressor=Sketch(quantiles=64, zero_edge=True, sample=0.01))

    Reference:
        Jiang, Fu, Yang and Cui, "SketchML: Accelerating Distributed Machine Learning with Data Sketches", SIGMOD 2018,
        doi 10.1145/3183713.3196894, section 3.2.
    """

    handles_many: ClassVar[bool] = True
    quantiles: Annotated[int, Range(2, 256)] = 16
    zero_edge: bool = True
    sample: Share = 0.01

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, Flag]:
        seen = count_seen(rows.shape[1], self.sample)
        return encode_quantiles(rows, self.quantiles, self.zero_edge, seen, rng, memory, rest)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        sum_quantiles(received, out, self.quantiles, scale, add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        seen = tuple(count_seen(n, self.sample) for n in many.sizes)
        return encode_quantiles_many(message, many, self.quantiles, self.zero_edge, seen, rng.step)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_quantiles_many(rows, many, self.quantiles, scale)

    def facts(self, n: int) -> Facts:
        exact = count_seen(n, self.sample) == n
        payload = quantile_bytes(n, self.quantiles)
        return Facts(contraction=1 / n if self.zero_edge else 0.0, deterministic=exact, payload=payload)
