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
from grace.kernels.index_codes import codes
from grace.kernels.index_codes.fixed import PlaceLists, check_list, decode_indices, encode_indices, layout
from grace.kernels.packing import unpack, unpack_trits
from grace.kernels.places import add_at_
from grace.kernels.selection import round_to_bfloat16, take_topk
from grace.kernels.sparse import DENSE, Pairs, ScaledCodes, TopKPairs, WirePart
from grace.kernels.sparse.parts import BAD_CODE, BAD_VALUES, check_parts
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each


def encode_topk(rows: Tensor, pairs: TopKPairs, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
    index, sent, finite = take_topk(rows, pairs.k, memory, rest, narrow=pairs.narrow)
    return encode_pairs(index, sent, rows.shape[1], pairs.code, narrow=pairs.narrow), finite


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
        add_at_(out, 0, index[0], added)


def sum_topk(received: Sequence[Tensor], out: Tensor, pairs: TopKPairs, weight: float, *, add: bool = False) -> None:
    for j, row in enumerate(out):
        parts = [WirePart(wire[j], 0, pairs.before, pairs.k, pairs.code) for wire in received]
        family.sum_sparse(parts, row, weight, narrow=pairs.narrow, add=add)  # which a device may have a kernel for


def encode_topk_many(message: Tensor, many: TensorList, pairs: Pairs) -> Tensor:
    def encode(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        row = t * many.rows
        return family.encode_topk(x, TopKPairs(pairs.kept[row], pairs.codes[row], pairs.narrow), memory, rest)

    return encode_each(message, many, encode)


def sum_topk_many(rows: Tensor, many: TensorList, pairs: Pairs, weight: float) -> Tensor:
    lists, grid = zip(pairs.kept, pairs.codes, strict=True), pairs.grid

    def add_up(received: list[Tensor], out: Tensor) -> None:
        if grid is None:
            family.sum_topk(received, out, TopKPairs(*next(lists), pairs.narrow), weight)
        else:
            sum_grid(received, out.zero_(), *next(lists), grid, weight)

    return sum_each(rows, many, pairs.widths(many.sizes), add_up)


def sum_grid(received: Sequence[Tensor], out: Tensor, k: int, code: str, grid: ScaledCodes, weight: float) -> None:
    """Adds to ``out [1, n]`` what wires ``[1, w]`` say of values on a grid. ``code``: any, of their places."""
    at = grid.width(k)
    for wire in received:
        scale = wires.check_scale("scale", wires.split(wire, [("scale", torch.float32, 1)], slack=True)[0])
        packed = wire[:, 4:at]
        if grid.bits == 0:
            refuse_unless((packed <= 242).all(), lambda: PayloadError(BAD_CODE))
        code_of = unpack(packed, grid.bits, k) if grid.bits else unpack_trits(packed, k)
        refuse_unless((code_of < grid.count).all(), lambda: PayloadError(BAD_CODE))
        values = (code_of.float() * grid.step - grid.unit) * (scale / grid.unit)
        index, _ = codes.take(wire[:, at:], out.shape[1], k, code)
        add_at_(out, 1, index, values * weight)


def clear_listed_many(index: Tensor, values: Tensor, flags: Tensor, many: TensorList, lists: PlaceLists) -> None:
    places_of, parts = index.split_with_sizes(lists.kept), values.split_with_sizes(lists.kept)
    for fine, places, part in zip(flags.repeat_interleave(many.rows), places_of, parts, strict=True):
        torch.where(fine, places, torch.arange(len(places), device=index.device, dtype=torch.int64), out=places)
        part.masked_fill_(~fine, 0.0)


def put_listed_many(index: Tensor, values: Tensor, many: TensorList, lists: PlaceLists) -> None:
    assert many.rests is not None
    places_of, parts = index.split_with_sizes(lists.kept), values.split_with_sizes(lists.kept)
    for row, places, part in zip(_rows(many.rests), places_of, parts, strict=True):
        row[places] = part


def take_listed_many(
    message: Tensor, index: Tensor, many: TensorList, lists: PlaceLists, *, clear: bool = True
) -> None:
    rows = _rows(many.rests or many.xs)
    places_of = index.split_with_sizes(lists.kept)
    for row, places, part in zip(rows, places_of, _parts(message, many, lists), strict=True):
        part.copy_(row[places])
        if clear and many.rests is not None:
            row[places] = torch.zeros_like(part)


def sum_listed_many(message: Tensor, index: Tensor, many: TensorList, lists: PlaceLists) -> Tensor:
    flags = []
    for row, places, part in zip(
        _rows(many.xs), index.split_with_sizes(lists.kept), _parts(message, many, lists), strict=True
    ):
        row.zero_()[places] = part + 0.0
        flags.append(part.isfinite().all())
    return torch.stack(flags).view(-1, many.rows).all(dim=1)


def _rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    """All rows of all tensors."""
    return [row for x in tensors for row in x]


def _parts(message: Tensor, many: TensorList, lists: PlaceLists) -> list[Tensor]:
    """The part of ``message [s]`` that belongs to each row."""
    return [message[place // 4 :][:k] for place, k in zip(many.places, lists.kept, strict=True)]
