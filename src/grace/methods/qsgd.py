from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import ConfigurationError, PayloadError, out_of_range
from grace.kernels import (
    block_abs_max,
    block_count,
    block_norm,
    pack,
    pack_trits,
    packed_bytes,
    packed_trits_bytes,
    spread,
    stochastic_round,
    unpack,
    unpack_trits,
)
from grace.method import Compressor, Facts
from grace.random import Stream
from grace.registry import register

_TINY = torch.finfo(torch.float32).tiny


@register("qsgd", communicator="allgather", family="quantization", aliases=("qsgdcompressor",))
@dataclass(frozen=True, slots=True)
class QSGD(Compressor):
    """QSGD: stochastic rounding to s levels on each side of zero, relative to the norm of a bucket.

    ``C(x)_i = N sgn(x_i) l_i / s``, where ``l_i`` rounds ``s |x_i| / N`` up or down at random, without bias, and N is
    the norm of the bucket that holds i

    Args:
        bits: bits of a code, 2 to 16; s = 2**(bits-1) - 1. Default 4.
        levels: s itself, 1 to 32767, instead of ``bits``.
        bucket: elements that share a norm, >= 1.
        norm: "linf" (the largest magnitude, as in the paper's experiments) or "l2" (as in its theory).
        shrink: multiply by 1/(1+omega), which makes it a contraction; a memory sets it.
    Wire:
        one norm (float32) for each bucket, then codes + s, packed: n ceil(log2(2s+1)) + 32 ceil(n/bucket) bits; with
        s = 1 five codes to a byte: 1.6 n bits. One round.
    Bias:
        unbiased; omega = min(B/s^2, sqrt(B)/s) for l2, min(B/(4 s^2), (sqrt(B)-1)/2 if s = 1) for linf. With
        ``shrink``: biased, delta = 1/(1+omega).
    Differs from the paper:
        fixed-width codes instead of Elias coding. A bucket whose norm is below 2**-126 is sent as zero.
    Example:
        >>> method("qsgd:bits=8,bucket=1024")
        Allgather(compressor=QSGD(bits=8, levels=None, bucket=1024, norm='linf', shrink=False))

    Reference:
        Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and
        Encoding", NeurIPS 2017, arXiv 1610.02132, sections 3.1 and 4.
    """

    bits: int | None = None
    levels: int | None = None
    bucket: int = 256
    norm: Literal["linf", "l2"] = "linf"
    shrink: bool = False

    def __post_init__(self) -> None:
        if self.bits is not None and self.levels is not None:
            raise ConfigurationError(f"qsgd: give bits or levels, not both (bits={self.bits}, levels={self.levels})")
        if self.bits is not None and self.bits not in range(2, 17):
            raise out_of_range("qsgd", "bits", self.bits, "2, 3, ..., 16")
        if self.levels is not None and self.levels not in range(1, 1 << 15):
            raise out_of_range("qsgd", "levels", self.levels, "1, 2, ..., 32767")
        if not (isinstance(self.bucket, int) and self.bucket >= 1):
            raise out_of_range("qsgd", "bucket", self.bucket, "a whole number >= 1")
        if self.norm not in ("linf", "l2"):
            raise out_of_range("qsgd", "norm", self.norm, "'linf', 'l2'")

    @property
    def s(self) -> int:
        """Levels on each side of zero."""
        return self.levels if self.levels is not None else (1 << ((self.bits or 4) - 1)) - 1

    @property
    def code_bits(self) -> int:
        """ceil(log2(2 s + 1))"""
        return (2 * self.s).bit_length()

    def with_memory(self) -> Compressor:
        return replace(self, shrink=True)

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        n, s = rows.shape[1], self.s
        norm = (block_abs_max if self.norm == "linf" else block_norm)(rows, self.bucket)  # [b, nb]
        norm = torch.where(norm < _TINY, 0.0, norm)
        share = rows.abs().div_(spread(norm.clamp_min(_TINY), n, self.bucket))  # [b, n] in [0, 1]
        share = torch.where(spread(norm, n, self.bucket) > 0, share, 0.0)
        u = rng.uniform(rows.numel(), rows.device).view(rows.shape)
        level = stochastic_round(share.mul_(s), u).clamp_max_(s)
        code = (level * rows.sign()).to(torch.int32).add_(s)  # [b, n] in [0, 2s]
        if self.shrink:
            norm = norm / (1 + self._omega(n))
        wire = wires.join(norm, pack_trits(code) if s == 1 else pack(code, self.code_bits))
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n, s = out.shape[1], self.s
        size = packed_trits_bytes(n) if s == 1 else packed_bytes(n, self.code_bits)
        fields = [("norms", torch.float32, block_count(n, self.bucket)), ("codes", torch.uint8, size)]
        norm, packed = wires.split(wire, fields)
        norm = wires.checked_scale("norms", norm)
        code = (unpack_trits(packed, n) if s == 1 else unpack(packed, self.code_bits, n)).to(torch.float32).sub_(s)
        if bool((code > s).any()) or (s == 1 and bool((packed > 242).any())):
            raise PayloadError(f"field 'codes' must be in [0, {2 * s}]")
        out.add_(code.mul_(spread(norm / s, n, self.bucket)), alpha=scale)

    def _omega(self, n: int) -> float:
        """The bound on the variance of a bucket (paper, lemma 3.1; linf: of a uniform grid of step N/s)."""
        B, s = min(n, self.bucket), self.s
        if self.norm == "l2":
            return min(B / s**2, math.sqrt(B) / s)
        return (math.sqrt(B) - 1) / 2 if s == 1 else min(B / (4 * s**2), (math.sqrt(B) - 1) / 2)

    def facts(self, n: int) -> Facts:
        size = packed_trits_bytes(n) if self.s == 1 else packed_bytes(n, self.code_bits)
        payload = 4 * block_count(n, self.bucket) + size
        omega = self._omega(n)
        if self.shrink:
            return Facts(contraction=1 / (1 + omega), deterministic=False, payload=payload)
        return Facts(unbiased=True, variance=omega, deterministic=False, payload=payload)
