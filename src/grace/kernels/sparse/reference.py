"""The specification of sparse wires, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import grace.kernels.sparse as family
from grace import wire as wires
from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.flags.refusals import refuse_unless
from grace.kernels.index_lists import check_list, decode_indices, encode_indices, layout
from grace.kernels.many import Many
from grace.kernels.many.reference import encode_each, sum_each
from grace.kernels.selection import round_to_bfloat16, take_topk
from grace.kernels.sparse import DENSE, Pairs, WirePart
from grace.kernels.sparse.parts import BAD_VALUES, check_parts


def encode_topk(
    rows: Tensor, k: int, code: str, memory: Tensor | None, rest: Tensor | None, *, narrow: bool
) -> tuple[Tensor, Flag]:
    index, sent, finite = take_topk(rows, k, memory, rest, narrow=narrow)
    return encode_pairs(index, sent, rows.shape[1], code, narrow=narrow), finite


def encode_pairs(index: Tensor, sent: Tensor, n: int, code: str, *, narrow: bool) -> Tensor:
    values = round_to_bfloat16(sent) if narrow else sent
    return wires.join(values, encode_indices(index.long(), n, code)) if index.shape[1] else wires.join(values)


def sum_sparse(parts: Sequence[WirePart], out: Tensor, weight: float, *, narrow: bool, add: bool = False) -> None:
    check_parts(parts, out.numel(), narrow=narrow)
    if not add:
        out.zero_()
    for part in parts:
        _add(part, out, weight, narrow)


def _add(part: WirePart, out: Tensor, weight: float, narrow: bool) -> None:
    n, dtype = out.numel(), torch.bfloat16 if narrow else torch.float32
    count = n if part.code == DENSE else part.k
    (values,) = wires.split(part.wire[None, part.values :], [("values", dtype, count)], slack=True)
    refuse_unless(values.isfinite().all(), lambda: PayloadError(BAD_VALUES))
    added = values[0].float() * weight
    if part.code == DENSE:
        out.add_(added)
    elif part.k:
        if part.places is not None:
            index = check_list(part.places[None].long(), n)
        else:
            end = part.codes + layout(n, part.k, part.code).size
            index = decode_indices(part.wire[None, part.codes : end], n, part.k, part.code)
        out.scatter_add_(0, index[0], added)


def sum_topk(
    received: Sequence[Tensor], out: Tensor, k: int, code: str, weight: float, *, narrow: bool, add: bool = False
) -> None:
    at = k * (2 if narrow else 4)
    for j, row in enumerate(out):
        parts = [WirePart(wire[j], 0, at, k, code) for wire in received]
        family.sum_sparse(parts, row, weight, narrow=narrow, add=add)  # which a device may have a kernel for


def encode_topk_many(message: Tensor, many: Many, pairs: Pairs) -> Tensor:
    def encode(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        row = t * many.rows
        return family.encode_topk(x, pairs.kept[row], pairs.codes[row], memory, rest, narrow=pairs.narrow)

    return encode_each(message, many, encode)


def sum_topk_many(rows: Tensor, many: Many, pairs: Pairs, weight: float) -> Tensor:
    lists = zip(pairs.kept, pairs.codes, strict=True)

    def add_up(received: list[Tensor], out: Tensor) -> None:
        family.sum_topk(received, out, *next(lists), weight, narrow=pairs.narrow)

    return sum_each(rows, many, pairs.widths(many.sizes), add_up)
