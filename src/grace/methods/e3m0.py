"""E3M0: floats of four bits, a sign and an exponent (Douillard et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Count
from grace.errors import PayloadError
from grace.flags.refusals import refuse_unless
from grace.kernels import block_abs_max, block_count, pack, packed_bytes, unpack
from grace.kernels.blocks import repeat_by_block
from grace.random import Stream
from grace.registry import register

BITS, LEVELS = 4, 7  # of a code; powers of two
_MINUS = 1 << (BITS - 1)  # alone it is minus zero, which no sender writes
_LEAST = 2.0**-120  # scales below this count as 0: the least power of their block would be no normal number
_HALF, _MANTISSA, _BIAS = 1 << 51, 52, 1023  # of a float64


@register("e3m0", communicator="allgather", family="cast", cases=["block=16", "block=32,memory=residual"])
@dataclass(frozen=True, slots=True)
class E3M0(Compressor):
    """E3M0: the nearest power of two, in units of the largest magnitude of a block, or zero.

    ``C(x)_i = 0 or +-s 2^-j``, j = 0, 1, ..., 6, whichever is nearest to ``x_i``, of two equally near ones the larger
    magnitude; ``s = max |x|`` of the block that holds i

    Args:
        block: elements that share s, >= 1.
    Wire:
        s (float32) of each block, then the codes, packed: 4 n + 32 ceil(n/block) bits, one round.
    Bias:
        biased; delta = 8/9 - (B-1) 2^-14 where that is positive: the relative error is at most 1/3 from 3/256 s on, and below
        that an error is at most s/128. With or without a delta no error exceeds a third of the largest magnitude, so that
        what a memory owes stays bounded. Exact for s times powers of two from 2^-6 to 1.
    Differs from the paper:
        it has the name of the format, and no more: the scale of a block and the rule for ties are ours. A block whose largest
        magnitude is below 2^-120 becomes 0.
    Example:
        >>> method("e3m0")
        Allgather(compressor=E3M0(block=512))

    Reference:
        Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch", 2025, arXiv
        2501.18512, section 3.3.
    """

    block: Count = 512

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        n = rows.shape[1]
        scales = block_abs_max(rows, self.block)  # [b, nb]
        scales = torch.where(scales >= _LEAST, scales, 0.0)
        units = repeat_by_block(torch.where(scales > 0, scales, 1.0).double(), n, self.block)
        size = rows.abs().double() / units  # [b, n]; at most 1, or the block becomes 0
        nearest = ((size.view(torch.int64) + _HALF) >> _MANTISSA) - (_BIAS - LEVELS)  # the exponent, rounded
        there = (size >= 2.0**-LEVELS) & (repeat_by_block(scales, n, self.block) > 0)
        level = torch.where(there, nearest.clamp_min_(1), 0)
        codes = level | (there & (rows < 0)).long() * _MINUS
        if keep_rest:
            rows.sub_(self._decode(codes, scales))
        return wires.join(scales, pack(codes, BITS))

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n = out.shape[1]
        fields = [
            ("scales", torch.float32, block_count(n, self.block)),
            ("codes", torch.uint8, packed_bytes(n, BITS)),
        ]
        scales, packed = wires.split(wire, fields)
        codes = unpack(packed, BITS, n)
        refuse_unless(
            (codes != _MINUS).all(), lambda: PayloadError(f"field 'codes' must not be {_MINUS}, a minus zero")
        )
        out.add_(self._decode(codes, wires.check_scale("scales", scales)).mul_(scale))

    def _decode(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Codes ``[b, n]``, scales ``[b, nb]`` -> the numbers that they stand for, float32 ``[b, n]``."""
        level = (codes & (_MINUS - 1)).int()
        power = torch.where(level > 0, (level + (127 - LEVELS)) << 23, 0).view(torch.float32)  # 2^(level - 7)
        signed = torch.where(codes >= _MINUS, -power, power)
        return signed.mul_(repeat_by_block(scales, codes.shape[1], self.block))

    def facts(self, n: int) -> Facts:
        payload = 4 * block_count(n, self.block) + packed_bytes(n, BITS)
        delta = 8 / 9 - (min(n, self.block) - 1) * 2.0 ** (-2 * LEVELS)
        return Facts(contraction=delta if delta > 0 else None, payload=payload)
