"""The specification of fixed-point numbers, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.flags.finite import Flag, flag
from grace.flags.refusals import refuse_unless
from grace.kernels.blocks import block_count, repeat_by_block
from grace.kernels.linear_quantization import BAD_UNIT, bad_code, fixed_bytes
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.statistics import block_abs_max
from grace.kernels.stochastic_levels import MOST, block_divide, stochastic_round
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each

if TYPE_CHECKING:
    from grace.random import Stream


def encode_fixed(
    rows: Tensor,
    bits: int,
    block: int,
    clip: float,
    shrink: float,
    rng: Stream | None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, Flag]:
    n, q = rows.shape[1], (1 << (bits - 1)) - 1
    least = q + (clip < 1)
    p = rows if memory is None else rows + memory
    finite = flag(p.isfinite().all())
    unit = (block_abs_max(p, block) * (clip / q)).clamp_max_(MOST / least)  # [b, nb]
    unit, y = block_divide(p, unit, block)
    y.clamp_(-least, q)
    # magnitudes are rounded, so that rounding is symmetric
    level = y.abs().round_() if rng is None else stochastic_round(y.abs(), _uniform(rows, rng))
    code = (level * y.sign()).to(torch.int32)  # [b, n] in [-least, q]
    unit = unit / shrink
    if rest is not None:
        torch.sub(p, code.float().mul_(repeat_by_block(unit, n, block)), out=rest)
    return wires.join(unit, pack(code.add_(q + 1), bits)), finite


def sum_fixed(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, clip: float, weight: float, *, add: bool = False
) -> None:
    n, zero = out.shape[1], 1 << (bits - 1)
    fields = [("units", torch.float32, block_count(n, block)), ("codes", torch.uint8, packed_bytes(n, bits))]
    if not add:
        out.zero_()
    for wire in received:
        units, packed = wires.split(wire, fields)
        code = unpack(packed, bits, n)
        if clip == 1:
            refuse_unless((code >= 1).all(), lambda: PayloadError(bad_code(bits)))
        value = code.float().sub_(zero).mul_(repeat_by_block(wires.check_scale("units", units), n, block))
        refuse_unless(value.isfinite().all(), lambda: PayloadError(BAD_UNIT))
        out.add_(value.mul_(weight))


def _uniform(rows: Tensor, rng: Stream) -> Tensor:
    return rng.uniform(rows.numel(), rows.device).view(rows.shape)


def encode_fixed_many(
    message: Tensor,
    many: TensorList,
    bits: int,
    block: int,
    clip: float,
    shrink: Callable[[int], float],
    step: int | None,
) -> Tensor:
    streams = [None if step is None else replace(stream, step=step) for stream in many.streams]

    def encode(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        return encode_fixed(x, bits, block, clip, shrink(x.shape[1]), streams[t], memory, rest)

    return encode_each(message, many, encode)


def sum_fixed_many(rows: Tensor, many: TensorList, bits: int, block: int, clip: float, weight: float) -> Tensor:
    widths = [fixed_bytes(n, bits, block) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: sum_fixed(received, out, bits, block, clip, weight))
