"""The bindings of the native kernels for sparse wires."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P
from grace.errors import PayloadError
from grace.kernels import check
from grace.kernels.call_table import ROWS
from grace.kernels.calling import LAYOUTS, Layout, encode, new_wire
from grace.kernels.calling_many import encode_rows, sum_listed
from grace.kernels.index_codes.fixed import layout, refuse
from grace.kernels.sparse import Pairs, TopKPairs, WirePart
from grace.kernels.sparse.parts import BAD_VALUES, check_parts
from grace.kernels.tensor_list import TensorList

_NOT_FINITE = -1
native.declare("topk_wire", P, P, P, N, N, N, I, I, I, P, N, I)
native.declare("write_pairs", P, P, N, N, I, I, I, P)
native.declare("sparse_sum", P, P, P, P, P, N, P, N, I, F, I, I)


def encode_topk(rows: Tensor, pairs: TopKPairs, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, bool]:
    return encode(native.c.topk_wire, _layout(rows.shape[1], pairs), rows, memory, rest)


def encode_pairs(index: Tensor, sent: Tensor, n: int, code: str, *, narrow: bool) -> Any:
    b, k = index.shape
    if b != 1 or index.dtype is not torch.int32 or not (index.is_contiguous() and sent.is_contiguous()):
        return NotImplemented
    number, low, size = layout(n, k, code)
    width = k * (2 if narrow else 4) + size
    wire = new_wire(b, width)
    given = native.address("index", index, torch.int32, k), native.address("sent", sent, torch.float32, k)
    native.c.write_pairs(*given, k, n, narrow, number, low, native.address("wire", wire, torch.uint8, width))
    return wire


class _PairsLayout(Layout):
    """The arguments of ``topk_wire``: its knobs come before the wire."""

    __slots__ = ()

    def __init__(self, width: int, n: int, *knobs: Any):
        super().__init__(width, n, None)
        self.sizes = (native.N(n), *knobs)


@functools.lru_cache(LAYOUTS)
def _layout(n: int, pairs: TopKPairs) -> Layout:
    number, low, size = layout(n, pairs.k, pairs.code)
    return _PairsLayout(pairs.before + size, n, N(pairs.k), I(pairs.narrow), I(number), I(low))


class _Same(NamedTuple):
    """W wires of k pairs each, as arrays for ``sparse_sum``; the lists begin ``values`` bytes into a wire of ``width``."""

    width: int
    values: int
    counts: ctypes.Array[ctypes.c_int64]
    codes: ctypes.Array[ctypes.c_int32]
    lows: ctypes.Array[ctypes.c_int32]


@functools.lru_cache(LAYOUTS)
def _same(senders: int, n: int, pairs: TopKPairs) -> _Same:
    number, low, size = layout(n, pairs.k, pairs.code)
    values = pairs.before
    counts, codes = (ctypes.c_int64 * senders)(*[pairs.k] * senders), (ctypes.c_int32 * senders)(*[number] * senders)
    return _Same(values + size, values, counts, codes, (ctypes.c_int32 * senders)(*[low] * senders))


def sum_topk(received: Sequence[Tensor], out: Tensor, pairs: TopKPairs, weight: float, *, add: bool = False) -> None:
    (b, n), W, narrow = out.shape, len(received), pairs.narrow
    width, values, *same = _same(W, n, pairs)
    address = check.numbers("out", out)
    addresses = check.wire_rows(received, b, width)
    rows = [addresses[j * W : (j + 1) * W] for j in range(b)]
    for j, begins in enumerate(rows):
        lists = check.pointers([begin + values for begin in begins])
        sizes = (W, address + 4 * n * j, n, narrow, weight, add, native.threads())
        why = native.c.sparse_sum(check.pointers(begins), lists, *same, *sizes)
        if why == _NOT_FINITE:
            raise PayloadError(BAD_VALUES)
        if why:
            refuse(why, n, pairs.k)


def encode_topk_many(message: Tensor, many: TensorList, pairs: Pairs) -> Any:
    def layout_of(t: int) -> Layout:
        row = t * many.rows
        return _layout(many.sizes[row], TopKPairs(pairs.kept[row], pairs.codes[row], pairs.narrow))

    return encode_rows(native.c.topk_wire, message, many, layout_of, pairs)


def sum_topk_many(rows: Tensor, many: TensorList, pairs: Pairs, weight: float) -> Any:
    if pairs.grid is not None:
        return NotImplemented
    W = len(rows)

    def call(r: int) -> tuple[Any, ...]:
        n, row = many.sizes[r], TopKPairs(pairs.kept[r], pairs.codes[r], pairs.narrow)
        return (*_same(W, n, row)[2:], W, ROWS, n, pairs.narrow, weight, False)

    return sum_listed(native.c.sparse_sum, rows, many, call, (pairs, weight), lists=lambda: pairs.lists.before)


def sum_sparse(parts: Sequence[WirePart], out: Tensor, weight: float, *, narrow: bool, add: bool = False) -> None:
    n, W = out.numel(), len(parts)
    layouts = check_parts(parts, n, narrow=narrow)
    lists = [None if part.places is None else part.places.to(torch.int32).contiguous() for part in parts]
    wires = [native.address("wire", part.wire, torch.uint8, part.wire.numel()) for part in parts]
    codes = [
        at + part.codes if index is None else native.address("places", index, torch.int32, part.k)
        for part, at, index in zip(parts, wires, lists, strict=True)
    ]
    why = native.c.sparse_sum(
        check.pointers([at + part.values for part, at in zip(parts, wires, strict=True)]),
        check.pointers(codes),
        (ctypes.c_int64 * W)(*[part.k for part in parts]),
        (ctypes.c_int32 * W)(*[number for number, _ in layouts]),
        (ctypes.c_int32 * W)(*[low for _, low in layouts]),
        *(W, check.numbers("out", out), n, narrow, weight, add, native.threads()),
    )
    if why == _NOT_FINITE:
        raise PayloadError(BAD_VALUES)
    refuse(why, n, parts[0].k if parts else 0)
