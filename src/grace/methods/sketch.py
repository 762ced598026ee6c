"""Quantile quantization, from SketchML (Jiang et al., SIGMOD 2018).

Letters: q buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Range, Share
from grace.kernels import add_scaled_, pack, packed_bytes, quantile_buckets
from grace.methods.common import coded_wire
from grace.methods.common.buckets import SMALL, check_means, sample_columns
from grace.random import Stream
from grace.registry import register


@register("sketch", communicator="allgather", memory="residual", family="hybrid", cases=["quantiles=8"])
@dataclass(frozen=True, slots=True)
class Sketch(Compressor):
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

    quantiles: Annotated[int, Range(2, 256)] = 16
    zero_edge: bool = True
    sample: Share = 0.01

    @property
    def code_bits(self) -> int:
        """ceil(log2 q)"""
        return (self.quantiles - 1).bit_length()

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        means, code, _ = quantile_buckets(rows, sample_columns(rows, self.sample, rng), self.quantiles, self.zero_edge)
        wire = wires.join(means, pack(code, self.code_bits))
        if keep_rest:
            largest = torch.finfo(rows.dtype).max  # a bucket that mixes signs may be wider than that
            rows.sub_(means.gather(1, code)).clamp_(-largest, largest)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n, q = out.shape[1], self.quantiles
        means, code = coded_wire.split_all(wire, ("means", torch.float32, q), self.code_bits, n)
        code = wires.check_index("codes", code.long(), q)
        add_scaled_(out, check_means(means).gather(1, code), scale)

    def facts(self, n: int) -> Facts:
        payload = 4 * self.quantiles + packed_bytes(n, self.code_bits)
        exact = n <= SMALL or self.sample == 1
        return Facts(contraction=1 / n if self.zero_edge else 0.0, deterministic=exact, payload=payload)
