"""The specification of fixed-point numbers, in plain torch."""

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
from grace.kernels.linear_quantization import BAD_UNIT, FixedPoint, bad_code
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.statistics import block_abs_max
from grace.kernels.stochastic_levels import MOST, block_divide, stochastic_round
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each

if TYPE_CHECKING:
    from grace.random import Stream


def encode_fixed(
    rows: Tensor, code: FixedPoint, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    n, q, least, block = rows.shape[1], code.q, code.least, code.block
    p = rows if memory is None else rows + memory
    finite = flag(p.isfinite().all())
    unit = (block_abs_max(p, block) * (code.clip / q)).clamp_max_(MOST / least)  # [b, nb]
    unit, y = block_divide(p, unit, block)
    y.clamp_(-least, q)
    # magnitudes are rounded, so that rounding is symmetric
    level = y.abs().round_() if code.nearest else stochastic_round(y.abs(), _uniform(rows, rng))
    number = (level * y.sign()).to(torch.int32)  # [b, n] in [-least, q]
    unit = unit / code.divisor(n)
    if rest is not None:
        torch.sub(p, number.float().mul_(repeat_by_block(unit, n, block)), out=rest)
    return wires.join(unit, pack(number.add_(q + 1), code.bits)), finite


def sum_fixed(received: Sequence[Tensor], out: Tensor, code: FixedPoint, weight: float, *, add: bool = False) -> None:
    n, bits, block, zero = out.shape[1], code.bits, code.block, code.q + 1
    fields = [("units", torch.float32, block_count(n, block)), ("codes", torch.uint8, packed_bytes(n, bits))]
    if not add:
        out.zero_()
    for wire in received:
        units, packed = wires.split(wire, fields)
        number = unpack(packed, bits, n)
        if code.clip == 1:
            refuse_unless((number >= 1).all(), lambda: PayloadError(bad_code(bits)))
        value = number.float().sub_(zero).mul_(repeat_by_block(wires.check_scale("units", units), n, block))
        refuse_unless(value.isfinite().all(), lambda: PayloadError(BAD_UNIT))
        out.add_(value.mul_(weight))


def _uniform(rows: Tensor, rng: Stream) -> Tensor:
    return rng.uniform(rows.numel(), rows.device).view(rows.shape)


def encode_fixed_many(message: Tensor, many: TensorList, code: FixedPoint, step: int) -> Tensor:
    def encode(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        return encode_fixed(x, code, replace(many.streams[t], step=step), memory, rest)

    return encode_each(message, many, encode)


def sum_fixed_many(rows: Tensor, many: TensorList, code: FixedPoint, weight: float) -> Tensor:
    widths = [code.payload(n) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: sum_fixed(received, out, code, weight))
