"""FP8-LM: gradients in eight bits (Peng et al., 2023).

Letters: F is the largest number of the format, m its fraction bits, 2**least its smallest normal number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import ROUNDING_BIAS, Facts
from grace.contract.knobs import Count
from grace.errors import PayloadError
from grace.flags.refusals import refuse_unless
from grace.kernels import MOST, add_scaled_, block_abs_max, block_count, block_divide, spread, stochastic_round
from grace.random import Stream
from grace.registry import register


class _Format(NamedTuple):
    dtype: torch.dtype
    F: float
    m: int
    least: int


FORMATS = {
    "e4m3": _Format(torch.float8_e4m3fn, 448.0, 3, -6),
    "e5m2": _Format(torch.float8_e5m2, 57344.0, 2, -14),
}


@register("fp8", communicator="allgather", family="cast", cases=["block=32", "fmt=e5m2", "stochastic=true"])
@dataclass(frozen=True, slots=True)
class FP8(Compressor):
    """Gradients as 8-bit floats, scaled block by block to the full range of the format.

    ``C(x)_i = s fp8(x_i / s)`` with ``s = max |x| / F`` of the block that holds i

    Args:
        fmt: "e4m3" (largest number F = 448, 3 fraction bits) or "e5m2" (57344, 2).
        block: elements that share a scale, >= 1.
        stochastic: round up or down at random, without bias, instead of to nearest even.
    Wire:
        one scale (float32) for each block, then a byte each: 8 n + 32 ceil(n/block) bits, one round.
    Bias:
        to nearest: biased; relative error at most 2^-4 (e4m3) or 2^-3 (e5m2), near zero absolute error at most 2^-10 s
        or 2^-17 s: delta = 1 - 2^-8 or 1 - 2^-6, less the latter. Stochastic: unbiased; omega = u^2/(4 (1+u)) with
        u = 1/8 or 1/4, plus B times the variance near zero; random numbers have 16 bits, which leaves a bias of at most 2^-17
        of a step.
    Differs from the paper:
        one scale for a block, not for a tensor, so that small layers of a bucket survive. No scale shared by the ranks,
        and no automatic factor for head-room: nothing is summed in 8 bits.
    Example:
        >>> method("fp8:fmt=e5m2")
        Allgather(compressor=FP8(fmt='e5m2', block=512, stochastic=False))

    Reference:
        Peng et al., "FP8-LM: Training FP8 Large Language Models", 2023, arXiv 2310.18313; the formats: Micikevicius et
        al., "FP8 Formats for Deep Learning", 2022, arXiv 2209.05433.
    """

    fmt: Literal["e4m3", "e5m2"] = "e4m3"
    block: Count = 512
    stochastic: bool = False

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        kind = FORMATS[self.fmt]
        top = block_abs_max(rows, self.block).clamp_max_(MOST)
        scale, y = block_divide(rows, top / kind.F, self.block)
        if self.stochastic:
            y = _stochastic(y, rng, kind)
        # what casts make of numbers beyond the range differs between versions of torch
        wire = wires.join(scale, y.clamp_(-kind.F, kind.F).to(kind.dtype))
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n, kind = out.shape[1], FORMATS[self.fmt]
        scales, codes = wires.split(
            wire, [("scales", torch.float32, block_count(n, self.block)), ("codes", torch.uint8, n)]
        )
        value = codes.contiguous().view(kind.dtype).float()
        refuse_unless(value.isfinite().all(), lambda: PayloadError("field 'codes' must be finite numbers"))
        value.mul_(spread(wires.check_scale("scales", scales), n, self.block))
        refuse_unless(value.isfinite().all(), lambda: PayloadError("field 'scales' must be small enough for its codes"))
        add_scaled_(out, value, scale)

    def facts(self, n: int) -> Facts:
        kind, payload = FORMATS[self.fmt], n + 4 * block_count(n, self.block)
        unit, B = 2.0**-kind.m, min(n, self.block)  # spacing of the numbers in [1, 2)
        near_zero = (
            B * (2.0**kind.least * unit / 2 / kind.F) ** 2
        )  # half a spacing each, in units of the largest number
        if self.stochastic:
            omega = unit**2 / (4 * (1 + unit)) + near_zero
            return Facts(
                unbiased=True,
                variance=omega,
                contraction=1 - omega,
                deterministic=False,
                payload=payload,
                bias=ROUNDING_BIAS,
            )
        return Facts(contraction=1 - (unit / 2) ** 2 - near_zero, payload=payload)


def _stochastic(y: Tensor, rng: Stream, kind: _Format) -> Tensor:
    """``y [b, n]`` on the grid of the format, rounded at random."""
    size = y.abs()
    exponent = size.frexp().exponent.sub_(1).clamp_min_(kind.least) - kind.m  # of the spacing at y
    level = stochastic_round(size.ldexp(-exponent), rng.uniform(y.numel(), y.device).view(y.shape))
    return level.ldexp(exponent).copysign_(y)
