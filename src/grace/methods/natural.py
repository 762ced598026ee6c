"""Letters: a float32 is sgn 2**(r - 127) (1 + p), with r the raw exponent, 1 to 254, and p in [0, 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError, out_of_range
from grace.kernels import block_abs_max, block_count, pack, packed_bytes, spread, unpack
from grace.method import Compressor, Facts
from grace.random import Stream
from grace.registry import register

_TOP = 254  # the raw exponent of 2**127, the largest power of two


@register("natural", communicator="allgather", family="quantization", aliases=("naturalcompressor",))
@dataclass(frozen=True, slots=True)
class Natural(Compressor):
    """Natural compression: stochastic rounding to a power of two.

    ``C(x)_i = sgn(x_i) 2^(e + 1) with probability p, else sgn(x_i) 2^e``, where ``|x_i| = 2^e (1 + p)``

    Args:
        bits: of a code: 9 (sign and exponent, the paper's), 8 (the 126 octaves below the largest number of a block) or
            4 (the 7 octaves below it).
        block: elements that share a range, >= 1; by default all of a row for 8 bits, 128 (legal: at most 2048) for 4. Of
            no effect for 9.
    Wire:
        the exponent (int8) of each block's range, but for 9 bits, then the codes, packed: bits n + 8 ceil(n/block) bits,
        one round.
    Bias:
        unbiased; omega = 1/8, for 4 bits 1/8 + B/4096: a number below the range becomes the smallest power in it, or 0.
        As omega < 1, delta = 1 - omega, and a memory is legal as it is. Exact for 0 and powers of two in the range.
    Differs from the paper:
        8 and 4 bits. Subnormal numbers become 0, and numbers above 2**127 become 2**127. No natural dithering.
    Example:
        >>> method("natural:bits=4")
        Allgather(compressor=Natural(bits=4, block=None))

    Reference:
        Horvath, Ho, Horvath, Sahu, Canini and Richtarik, "Natural Compression for Distributed Deep Learning", MSML
        2022, arXiv 1905.10988.
    """

    bits: int = 8
    block: int | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.bits, int) and self.bits in (4, 8, 9)):
            raise out_of_range("natural", "bits", self.bits, "4, 8, 9")
        if not (self.block is None or (isinstance(self.block, int) and self.block >= 1)):
            raise out_of_range("natural", "block", self.block, "a whole number >= 1, or none")
        if self.bits == 4 and self.block is not None and self.block > 2048:  # so that omega < 1
            raise out_of_range("natural", "block", self.block, "at most 2048 with bits=4")

    def _block(self, n: int) -> int:
        return self.block if self.block is not None else 128 if self.bits == 4 else n

    @property
    def octaves(self) -> int:
        """How many powers of two a code can say."""
        return {4: 7, 8: 126, 9: _TOP}[self.bits]

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        n, block = rows.shape[1], self._block(rows.shape[1])
        u = rng.uniform(rows.numel(), rows.device).view(rows.shape)
        raw, p = _parts(rows)
        level = (raw + (u < p)).clamp_max_(_TOP)
        fields = []
        if self.bits != 9:  # codes count from below the range: octaves <-> 2**top
            raw_top, p_top = _parts(block_abs_max(rows, block))  # [b, nb]
            top = (raw_top + (p_top > 0)).clamp_(1, _TOP)  # the largest number, rounded up
            fields.append((top - 127).to(torch.int8))
            bottom = spread(top, n, block) - self.octaves + 1  # the raw exponent of code 1
            chance = torch.ldexp(1 + p, raw - bottom)  # |x| / 2**bottom
            level = torch.where(raw < bottom, torch.where(u < chance, bottom, bottom - 1), level)
            level = torch.where(raw > 0, level - bottom + 1, 0)
        code = level | ((rows < 0) & (level > 0)).to(level.dtype) << (self.bits - 1)
        wire = wires.join(*fields, pack(code, self.bits))
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n, block = out.shape[1], self._block(out.shape[1])
        ranged = [("exponents", torch.int8, block_count(n, block))] if self.bits != 9 else []
        *tops, packed = wires.split(wire, [*ranged, ("codes", torch.uint8, packed_bytes(n, self.bits))])
        code = unpack(packed, self.bits, n).to(torch.int32)
        level = code & ((1 << (self.bits - 1)) - 1)
        wires.checked_index("codes", level, self.octaves + 1)
        zero = level == 0
        if tops:
            level = level + spread(tops[0].to(torch.int32) + (127 - self.octaves), n, block)
        if bool(((level < 1) | (level > _TOP)).logical_and_(~zero).any()):
            raise PayloadError("field 'exponents' puts a code outside the range of float32")
        size = (level << 23).view(torch.float32)
        value = torch.where(code >> (self.bits - 1) > 0, -size, size)
        out.add_(torch.where(zero, 0.0, value), alpha=scale)

    def facts(self, n: int) -> Facts:
        block = self._block(n)
        omega = 1 / 8 + (min(n, block) / 4096 if self.bits == 4 else 0)
        payload = packed_bytes(n, self.bits) + (block_count(n, block) if self.bits != 9 else 0)
        return Facts(unbiased=True, variance=omega, contraction=1 - omega, deterministic=False, payload=payload)


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """The raw exponent (int32; 0 for zeros and subnormal numbers) and p (float32) of each number."""
    word = x.view(torch.int32)
    raw = (word >> 23) & 0xFF
    return raw, torch.where(raw > 0, (word & 0x7FFFFF).float().mul_(2.0**-23), 0.0)
