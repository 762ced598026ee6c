"""TernGrad: ternary gradients (Wen et al., NeurIPS 2017)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from grace.contract.compressor import Compressor, Fused
from grace.contract.facts import Facts
from grace.contract.knobs import Count, check_knobs
from grace.errors import out_of_range
from grace.flags.finite import Flag
from grace.kernels import TensorList, cut_to_deviations
from grace.methods.qsgd import QSGD
from grace.random import Stream
from grace.registry import register


@register(
    "terngrad",
    communicator="allgather",
    family="quantization",
    cases=["bucket=32", "clip=2.5", "clip=1,memory=residual"],
)
@dataclass(frozen=True, slots=True)
class TernGrad(Fused):
    """TernGrad: three levels, -s, 0 and s, with s the largest magnitude of a bucket.

    ``C(x)_i = s sgn(y_i) with probability |y_i|/s, else 0``, where y is x, clipped to clip times its root mean square

    Args:
        clip: where to clip, in units of the bucket's root mean square: 0 (off) or >= 1; the paper's is 2.5.
        bucket: elements that share s, >= 1.
        shrink: multiply by 1/(1+omega), which makes it a contraction; a memory sets it.
    Wire:
        one s (float32) for each bucket, then five values to a byte: 1.6 n + 32 ceil(n/bucket) bits, one round.
    Bias:
        without clipping unbiased; omega = (sqrt(B)-1)/2. With clipping biased where it clips. With ``shrink`` biased;
        delta = min(1, clip/sqrt(B))/(1+omega). Exact for zeros and one magnitude. Numbers below 2^-17 s are always 0:
        random numbers have 16 bits.
    Differs from the paper:
        the paper has one s for a layer, shares it over workers, and clips at 2.5 standard deviations about the mean,
        which would send a constant as 0; the official code's default is not to clip. Which layers to leave uncompressed
        (the paper: the last) is the policy's business.
    Example:
        >>> method("terngrad:clip=2.5")
        Allgather(compressor=TernGrad(clip=2.5, bucket=1024, shrink=False))

    Reference:
        Wen, Xu, Yan, Wu, Wang, Chen and Li, "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
        Learning", NeurIPS 2017, arXiv 1705.07878.
    """

    handles_many: ClassVar[bool] = True
    clip: float = 0.0
    bucket: Count = 1024
    shrink: bool = False

    def __post_init__(self) -> None:
        check_knobs(self)
        if not (self.clip == 0 or self.clip >= 1):
            raise out_of_range("terngrad", "clip", self.clip, "0 (off), or 1 <= clip < inf")

    @property
    def _ternary(self) -> QSGD:
        """QSGD with one level, which rounds to the same three values."""
        return _make_ternary(self.bucket, self.shrink)

    def with_memory(self) -> Compressor:
        return replace(self, shrink=True)

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, Flag]:
        if not self.clip:
            return self._ternary.encode_(rows, rng, memory, rest)
        return Compressor.encode_(self, rows, rng, memory, rest)

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        if not self.clip:
            return self._ternary.compress_(rows, rng, keep_rest)
        wire = self._ternary.compress_(cut_to_deviations(rows, self.bucket, self.clip), rng, False)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        self._ternary.sum_(received, out, scale, rng, add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return self._ternary.encode_clipped_many(message, many, rng, self.clip)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return self._ternary.aggregate_many_(rows, many, scale, rng)

    def passes(self, n: int) -> int | None:
        return None if self.clip else self._ternary.passes(n)

    def facts(self, n: int) -> Facts:
        facts = self._ternary.facts(n)
        if self.clip:
            # <x, clipped x> >= share |x|^2, as no magnitude exceeds sqrt(B) times the root mean square
            share = min(1.0, self.clip / math.sqrt(min(n, self.bucket)))
            delta = None if facts.contraction is None else facts.contraction * share
            return replace(facts, unbiased=False, variance=None, contraction=delta, bias=0.0)
        return facts


@functools.lru_cache
def _make_ternary(bucket: int, shrink: bool) -> QSGD:
    return QSGD(levels=1, bucket=bucket, norm="linf", shrink=shrink)
