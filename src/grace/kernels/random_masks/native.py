"""The bindings of the native kernels that take and add subsets."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P, U
from grace.flags.finite import Flag
from grace.kernels import check
from grace.kernels.calling import LAYOUTS, Layout, decode
from grace.kernels.finite import all_finite, sum_finite
from grace.kernels.random_masks import Drawing, check_wires
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, stack_flags

if TYPE_CHECKING:
    from grace.random import Stream

_MOST = (1 << 32) - 1  # numbers of a row
native.declare("take_subset", P, N, N, N, U, U, U, P, I, F, I)
native.declare("add_subset", P, N, P, N, N, U, U, U, F, I)


def take_subset(rows: Tensor, k: int, rng: Stream, left: float | None = None) -> Any:
    b, n = rows.shape
    at = check.numbers("rows", rows)
    if n > _MOST or not 0 <= k <= n:
        return NotImplemented
    wire = torch.empty(b, k, dtype=torch.float32, device="cpu")
    keep, factor = (0, 0.0) if left is None else (1, left)
    where = native.address("wire", wire, torch.float32, b * k)
    native.c.take_subset(at, b, n, k, *rng.native_key(), where, keep, factor, native.threads())
    return wire


def add_subset(received: Sequence[Tensor], out: Tensor, weight: float, rng: Stream) -> Any:
    n, k = out.shape[1], check_wires(received, out)
    if n > _MOST:
        return NotImplemented
    wires = [wire.contiguous().view(torch.uint8) for wire in received]
    decode(native.c.add_subset, _layout(n, k), wires, out, *rng.native_key(), weight)
    return None


def take_subsets_many(message: Tensor, many: TensorList, drawing: Drawing, step: int, left: Sequence[float]) -> Any:
    if drawing.block is not None or drawing.cyclic:
        return NotImplemented

    def take(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        row = t * many.rows
        p, rng = x if rest is None else rest, replace(many.streams[t], step=step)
        finite = all_finite(x) if rest is None or rest is x else sum_finite(x, memory, p)
        p = p if finite else torch.zeros_like(p)
        return take_subset(p, drawing.kept[row], rng, None if rest is None else left[row]).view(torch.uint8), finite

    return encode_each(message.view(torch.uint8), many, take)


def sum_subsets_many(rows: Tensor, many: TensorList, drawing: Drawing, step: int, weight: Sequence[float]) -> Any:
    if drawing.block is not None or drawing.cyclic:
        return NotImplemented
    flags = []
    for r, out in enumerate(row[None] for x in many.xs for row in x):
        begin, rng = many.places[r] // 4, replace(many.streams[r // many.rows], step=step)
        received = rows[:, None, begin : begin + drawing.kept[r]]
        flags.append(all_finite(received))
        add_subset(list(received), out.zero_(), weight[r], rng)
    return stack_flags(flags, many)


@functools.lru_cache(LAYOUTS)
def _layout(n: int, k: int) -> Layout:
    return Layout(4 * k, n, None, N(k))
