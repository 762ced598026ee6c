from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import ConfigurationError, PayloadError, out_of_range
from grace.kernels import (
    Span,
    block_abs_max,
    block_count,
    block_norm,
    pack,
    pack_trits,
    packed_bytes,
    packed_trits_bytes,
    spans,
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
        if self.bits is not None and not (isinstance(self.bits, int) and 2 <= self.bits <= 16):
            raise out_of_range("qsgd", "bits", self.bits, "2, 3, ..., 16")
        if self.levels is not None and not (isinstance(self.levels, int) and 1 <= self.levels <= 32767):
            raise out_of_range("qsgd", "levels", self.levels, "1, 2, ..., 32767")
        if not (isinstance(self.bucket, int) and self.bucket >= 1):
            raise out_of_range("qsgd", "bucket", self.bucket, "a whole number >= 1")
        if self.norm not in ("linf", "l2"):
            raise out_of_range("qsgd", "norm", self.norm, "'linf', 'l2'")
        if not isinstance(self.shrink, bool):
            raise out_of_range("qsgd", "shrink", self.shrink, "True, False")

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
        b, n = rows.shape
        norms = rows.new_empty(b, block_count(n, self.bucket))
        codes = rows.new_empty(b, self._code_bytes(n), dtype=torch.uint8)
        shrink = 1 / (1 + self._omega(n)) if self.shrink else 1.0
        for span in spans(b, n, self.bucket):
            part = rows[span.row, None, span.columns]  # [1, m]
            norm, packed = self._quantize(part, rng.uniform(len(span), rows.device, span.first))
            norms[span.row, span.blocks] = norm.mul_(shrink)
            codes[span.row, self._bytes(span)] = packed
            if keep_rest:
                self._dequantize_add_(norm, packed, part, -1.0)
        return wires.join(norms, codes)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        b, n = out.shape
        count = block_count(n, self.bucket)
        fields = [("norms", torch.float32, count), ("codes", torch.uint8, self._code_bytes(n))]
        norms, codes = wires.split(wire, fields)
        wires.checked_scale("norms", norms)
        for span in spans(b, n, self.bucket):
            norm, packed = norms[span.row, None, span.blocks], codes[span.row, None, self._bytes(span)]
            self._dequantize_add_(norm, packed, out[span.row, None, span.columns], scale)

    def _quantize(self, part: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers ``[1, m]`` -> norms ``[1, nb]``, packed codes."""
        m, s = part.shape[1], self.s
        norm = (block_abs_max if self.norm == "linf" else block_norm)(part, self.bucket)
        norm.masked_fill_(norm < _TINY, 0.0)
        share = part.abs().div_(spread(norm.masked_fill(norm == 0, math.inf), m, self.bucket))  # in [0, 1]
        level = stochastic_round(share.mul_(s), u).clamp_max_(s)
        code = level.copysign_(part).add_(s).to(torch.int32)  # in [0, 2s]
        return norm, pack_trits(code) if s == 1 else pack(code, self.code_bits)

    def _dequantize_add_(self, norm: Tensor, packed: Tensor, out: Tensor, scale: float) -> None:
        m, s = out.shape[1], self.s
        if s == 1:
            if bool((packed > 242).any()):
                raise PayloadError("field 'codes' must be in [0, 242]")
            code = unpack_trits(packed, m)
        else:
            code = unpack(packed, self.code_bits, m)
            if bool((code > 2 * s).any()):
                raise PayloadError(f"field 'codes' must be in [0, {2 * s}]")
        out.add_(code.to(torch.float32).sub_(s).mul_(spread(norm / s, m, self.bucket)), alpha=scale)

    def _code_bytes(self, n: int) -> int:
        return packed_trits_bytes(n) if self.s == 1 else packed_bytes(n, self.code_bits)

    def _bytes(self, span: Span) -> slice:
        return span.trits if self.s == 1 else span.bits(self.code_bits)

    def _omega(self, n: int) -> float:
        """The bound on the variance of a bucket (paper, lemma 3.1; linf: of a uniform grid of step N/s)."""
        B, s = min(n, self.bucket), self.s
        if self.norm == "l2":
            return min(B / s**2, math.sqrt(B) / s)
        return (math.sqrt(B) - 1) / 2 if s == 1 else min(B / (4 * s**2), (math.sqrt(B) - 1) / 2)

    def facts(self, n: int) -> Facts:
        payload = 4 * block_count(n, self.bucket) + self._code_bytes(n)
        omega = self._omega(n)
        if self.shrink:
            return Facts(contraction=1 / (1 + omega), deterministic=False, payload=payload)
        return Facts(unbiased=True, variance=omega, deterministic=False, payload=payload)
