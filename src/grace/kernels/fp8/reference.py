"""The specification of floats of 8 bits, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.flags.finite import Flag, flag
from grace.flags.refusals import refuse_unless
from grace.kernels.blocks import block_count, repeat_by_block
from grace.kernels.fp8 import BAD_CODE, BAD_SCALE, FloatFormat, float_bytes
from grace.kernels.statistics import block_abs_max
from grace.kernels.stochastic_levels import MOST, block_divide, stochastic_round
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each

if TYPE_CHECKING:
    from grace.random import Stream


def encode_floats(
    rows: Tensor,
    kind: FloatFormat,
    block: int,
    rng: Stream | None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, Flag]:
    p = rows if memory is None else rows + memory
    finite = flag(p.isfinite().all())
    top = block_abs_max(p, block).clamp_max_(MOST)
    scale, y = block_divide(p, top / kind.F, block)
    if rng is not None:
        y = _round_at_random(y, rng, kind)
    # what casts make of numbers beyond the range differs between versions of torch
    code = y.clamp_(-kind.F, kind.F).to(kind.dtype)
    if rest is not None:
        decoded = code.float().mul_(repeat_by_block(scale, rows.shape[1], block))
        torch.sub(p, decoded, out=rest)
    return wires.join(scale, code), finite


def sum_floats(
    received: Sequence[Tensor], out: Tensor, kind: FloatFormat, block: int, weight: float, *, add: bool = False
) -> None:
    n = out.shape[1]
    if not add:
        out.zero_()
    for wire in received:
        scales, codes = wires.split(wire, [("scales", torch.float32, block_count(n, block)), ("codes", torch.uint8, n)])
        value = codes.contiguous().view(kind.dtype).float()
        refuse_unless(value.isfinite().all(), lambda: PayloadError(BAD_CODE))
        value.mul_(repeat_by_block(wires.check_scale("scales", scales), n, block))
        refuse_unless(value.isfinite().all(), lambda: PayloadError(BAD_SCALE))
        out.add_(value.mul_(weight))


def encode_floats_many(message: Tensor, many: TensorList, kind: FloatFormat, block: int, step: int | None) -> Tensor:
    streams = [None if step is None else replace(stream, step=step) for stream in many.streams]
    return encode_each(
        message, many, lambda t, x, memory, rest: encode_floats(x, kind, block, streams[t], memory, rest)
    )


def sum_floats_many(rows: Tensor, many: TensorList, kind: FloatFormat, block: int, weight: float) -> Tensor:
    widths = [float_bytes(n, block) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: sum_floats(received, out, kind, block, weight))


def _round_at_random(y: Tensor, rng: Stream, kind: FloatFormat) -> Tensor:
    """``y [b, n]`` on the grid of the format, rounded up or down at random."""
    size = y.abs()
    exponent = size.frexp().exponent.sub_(1).clamp_min_(kind.least) - kind.m  # of the spacing at y
    level = stochastic_round(size.ldexp(-exponent), rng.uniform(y.numel(), y.device).view(y.shape))
    return level.ldexp(exponent).copysign_(y)
