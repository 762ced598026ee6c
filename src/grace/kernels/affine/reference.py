"""The specification of codes between the least and the largest number of a block, in plain torch."""

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
from grace.kernels.affine import BAD_RANGE, LARGEST, WIDEST, affine_bytes
from grace.kernels.blocks import block_count, clip_block, repeat_by_block
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each

if TYPE_CHECKING:
    from grace.random import Stream


def encode_affine(
    rows: Tensor, bits: int, block: int, rng: Stream | None, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    n, q = rows.shape[1], (1 << bits) - 1
    p = rows if memory is None else rows + memory
    finite = flag(p.isfinite().all())
    ranges = _ranges(p, q, block)  # [b, nb, 2]
    least, step = (repeat_by_block(each, n, block) for each in ranges.unbind(2))
    y = ((p - least) / torch.where(step > 0, step, 1.0)).clamp_(0, q).mul_(2.0**15).round_().to(torch.int32)
    half = 0x4000 if rng is None else 0x7FFF - (rng.lanes(rows.numel(), rows.device).view(rows.shape) >> 1)
    code = (y + half) >> 15
    if rest is not None:
        torch.sub(p, code.float().mul_(step).add_(least), out=rest)
    return wires.join(ranges.flatten(1), pack(code, bits)), finite


def sum_affine(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, *, add: bool = False
) -> None:
    (b, n), q = out.shape, (1 << bits) - 1
    fields = [("ranges", torch.float32, 2 * block_count(n, block)), ("codes", torch.uint8, packed_bytes(n, bits))]
    if not add:
        out.zero_()
    for wire in received:
        ranges, packed = wires.split(wire, fields)
        least, step = ranges.reshape(b, block_count(n, block), 2).unbind(2)
        reach = step * q
        legal = (least.abs() <= LARGEST) & (reach >= 0) & (reach <= WIDEST)
        refuse_unless(legal.all(), lambda: PayloadError(BAD_RANGE))
        least, step = (repeat_by_block(each * weight, n, block) for each in (least, step))
        out.add_(unpack(packed, bits, n).float().mul_(step).add_(least))


def encode_affine_many(message: Tensor, many: TensorList, bits: int, block: int, step: int | None) -> Tensor:
    streams = [None if step is None else replace(stream, step=step) for stream in many.streams]

    def encode(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        return encode_affine(x, bits, block, streams[t], memory, rest)

    return encode_each(message, many, encode)


def sum_affine_many(rows: Tensor, many: TensorList, bits: int, block: int, weight: float) -> Tensor:
    widths = [affine_bytes(n, bits, block) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: sum_affine(received, out, bits, block, weight))


def _ranges(p: Tensor, q: int, block: int) -> Tensor:
    """``[b, n]`` -> ``[b, nb, 2]``: the least number of each block, and the step."""
    (b, n), block = p.shape, clip_block(p, block)
    missing = block_count(n, block) * block - n
    if missing:  # the last number again changes neither end
        p = torch.cat((p, p[:, -1:].expand(b, missing)), 1)
    least, most = torch.aminmax(p.reshape(b, block_count(n, block), block), dim=2)
    least = least.clamp(-LARGEST, LARGEST) + 0.0  # not -0
    step = (most.clamp(-LARGEST, LARGEST) - least) / q
    return torch.stack((least, torch.where(step >= 2.0**-126, step, 0.0)), 2)
