"""8-bit approximations for parallelism in deep learning (Dettmers, ICLR 2016)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace.contract.compressor import Fused
from grace.contract.facts import Facts
from grace.contract.knobs import Count
from grace.kernels import (
    Codebook,
    TensorList,
    codebook_bytes,
    encode_codebook,
    encode_codebook_many,
    passes_with_largest,
    sum_codebook,
    sum_codebook_many,
)
from grace.random import Stream
from grace.registry import register


@register(
    "u8bit",
    communicator="allgather",
    memory="residual",
    family="quantization",
    cases=["block=32", "", "block=7,map=bnb"],
)
@dataclass(frozen=True, slots=True)
class U8bit(Fused):
    """8-bit dynamic tree quantization: a sign and one of 128 magnitudes, denser towards zero over six decades.

    ``C(x)_i = s sgn(x_i) T[argmin_j |T[j] - |x_i|/s|]`` with ``s = max |x|`` of the block that holds i

    Args:
        block: elements that share a scale, >= 1.
        map: the table T: "tree" (the paper's: 0, six decades of two equal halves, 1) or "bnb" (bitsandbytes': 0, seven
            decades).
    Wire:
        one scale (float32) for each block, then a byte each: 8 n + 32 ceil(n/block) bits, one round.
    Bias:
        biased; no error exceeds the number itself, nor 0.0086 s; delta = 1/B. The largest number of a block and
        zeros are exact.
    Differs from the paper:
        the paper has one scale for a matrix. "bnb" has all values of bitsandbytes' signed dynamic map but +1.0, since a
        code is a sign and one of 128 magnitudes, and +1.0 has no twin there. A block's largest number comes back as 0.993
        of itself, whatever its sign; in bitsandbytes a negative one does: delta = 0.9999/B.
    Example:
        >>> method("u8bit:block=256")
        ErrorFeedback(method=Allgather(compressor=U8bit(block=256, map='tree')), beta=1.0, gamma=1.0)

    Reference:
        Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016, arXiv 1511.04561; the table as in
        the author's clusterNet.
    """

    handles_many: ClassVar[bool] = True
    block: Count = 2048
    map: Literal["tree", "bnb"] = "tree"

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        return encode_codebook(rows, _book(self.map), self.block, memory, rest)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        sum_codebook(received, out, _book(self.map), self.block, scale, add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_codebook_many(message, many, _book(self.map), self.block)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_codebook_many(rows, many, _book(self.map), self.block, scale)

    def passes(self, n: int) -> int | None:
        return passes_with_largest(self.block)

    def facts(self, n: int) -> Facts:
        delta = (1.0 if self.map == "tree" else 0.9999) / min(n, self.block)
        return Facts(contraction=delta, payload=codebook_bytes(n, self.block))


@functools.lru_cache
def table(map: Literal["tree", "bnb"]) -> Tensor:  # noqa: A002
    """``[128]`` float32, ascending from 0: the centers of equal bins of each decade."""
    centers = [torch.zeros(1, dtype=torch.float64, device="cpu")]
    for decade in range(6 if map == "bnb" else 5, -1, -1):
        bins = 1 << (6 - decade)
        parts = ((0.1, 1.0, bins),) if map == "bnb" else ((0.1, 0.45, bins // 2), (0.45, 1.0, bins // 2))
        for low, high, count in parts:
            center = (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) / count
            centers.append((low + (high - low) * center) * float(f"1e-{decade}"))  # a power differs between libraries
    if map == "tree":
        centers.append(torch.ones(1, dtype=torch.float64, device="cpu"))
    return torch.cat(centers).float()


@functools.lru_cache
def _book(map: Literal["tree", "bnb"]) -> Codebook:  # noqa: A002
    return Codebook.of(table(map))
