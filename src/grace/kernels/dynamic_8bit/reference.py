"""The specification of codebooks, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.flags.finite import Flag, and_, flag
from grace.flags.refusals import refuse_unless
from grace.kernels.blocks import block_count, repeat_by_block
from grace.kernels.dynamic_8bit import BAD_CODE, BAD_SCALE, SIGN, Codebook, codebook_bytes
from grace.kernels.spans import split_spans
from grace.kernels.statistics import block_abs_max
from grace.kernels.stochastic_levels import nearest
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each

_TINY, _SMALL, _UP = 2.0**-126, 2.0**-64, 2.0**60


def encode_codebook(
    rows: Tensor, book: Codebook, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    b, n = rows.shape
    scales = rows.new_empty(b, block_count(n, block))
    codes = rows.new_empty(b, n, dtype=torch.uint8)
    entries = book.entries_on(rows.device)
    finite: Flag = True
    for span in split_spans(b, n, block):
        part = rows[span.row, None, span.columns]  # [1, m]
        if memory is not None:
            part = part + memory[span.row, None, span.columns]
        finite = and_(finite, flag(part.isfinite().all()))
        scale = block_abs_max(part, block)  # [1, nb]
        scale = torch.where(scale >= _TINY, scale, 0.0)
        up = torch.where(scale < _SMALL, _UP, 1.0)  # else the reciprocal could overflow
        factor = torch.where(scale > 0, 1 / (scale * up), 0.0)
        y = part.abs() * repeat_by_block(up, len(span), block) * repeat_by_block(factor, len(span), block)
        code = nearest(y.clamp_max_(1), entries).to(torch.uint8)
        code |= ((part < 0) & (code > 0)).to(torch.uint8).mul_(SIGN)
        scales[span.row, span.blocks], codes[span.row, span.columns] = scale, code
        if rest is not None:
            decoded = _decode(code, entries).mul_(repeat_by_block(scale, len(span), block))
            torch.sub(part, decoded, out=rest[span.row, None, span.columns])
    return wires.join(scales, codes), finite


def sum_codebook(
    received: Sequence[Tensor], out: Tensor, book: Codebook, block: int, weight: float, *, add: bool = False
) -> None:
    if not add:
        out.zero_()
    for wire in received:
        _add(wire, out, book, block, weight)


def _decode(code: Tensor, entries: Tensor) -> Tensor:
    return torch.cat((entries, -entries))[code.long()]


def _add(wire: Tensor, out: Tensor, book: Codebook, block: int, weight: float) -> None:
    b, n = out.shape
    scales, codes = wires.split(wire, [("scales", torch.float32, block_count(n, block)), ("codes", torch.uint8, n)])
    refuse_unless(((scales >= 0) & (scales < math.inf)).all(), lambda: PayloadError(BAD_SCALE))
    refuse_unless((codes != SIGN).all(), lambda: PayloadError(BAD_CODE))
    entries = book.entries_on(out.device)
    for span in split_spans(b, n, block):
        factor = scales[span.row, None, span.blocks] * weight
        value = _decode(codes[span.row, None, span.columns], entries)
        out[span.row, None, span.columns].add_(value.mul_(repeat_by_block(factor, len(span), block)))


def encode_codebook_many(message: Tensor, many: TensorList, book: Codebook, block: int) -> Tensor:
    return encode_each(message, many, lambda _, x, memory, rest: encode_codebook(x, book, block, memory, rest))


def sum_codebook_many(rows: Tensor, many: TensorList, book: Codebook, block: int, weight: float) -> Tensor:
    widths = [codebook_bytes(n, block) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: sum_codebook(received, out, book, block, weight))
