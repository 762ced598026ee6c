"""Wires that are the numbers themselves, of the tensors of a bucket, as Triton kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, launch
from grace.kernels.multi_tensor.triton import store_rounded
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import load_number, load_sum, magnitude, mark_if, store_tile


@triton.jit
def _place_of(table, task, message):
    """(where a row's wire begins in a message of numbers, n)"""
    place, n = wire_of(table, task)
    return message + place // (message.dtype.element_ty.primitive_bitwidth // 8), n


@triton.jit(do_not_specialize=["largest"])
def _encode(
    table, programs, like, wire, marks, largest,
    HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A program: a tile of a row."""
    task, tile = tile_of(programs)
    at, n = _place_of(table, task, wire)
    x, start = numbers_of(table, task, like, EVEN)
    i = tile * TILE + tl.arange(0, TILE)
    inside, full = i < n, (tile + 1) * TILE <= n
    p = load_sum(x + start, tensor_of(table, task, 1, EVEN) + start, i, inside, HAS_MEMORY, full)
    mark_if(marks + task, magnitude(p) >= 0x7F800000)
    if HAS_REST:
        decoded = store_rounded(at, i, inside, tl.minimum(tl.maximum(p, largest * -1.0), largest))
        store_tile(tensor_of(table, task, 2, EVEN) + start + i, p - decoded, inside, full)
    else:
        store_rounded(at, i, inside, p)


@triton.jit(do_not_specialize=["W", "stride", "weight"])
def _sum(table, programs, like, wires, W, stride, weight, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    at, n = _place_of(table, task, wires)
    x, start = numbers_of(table, task, like, EVEN)
    i = tile * TILE + tl.arange(0, TILE)
    inside, full = i < n, (tile + 1) * TILE <= n
    total = tl.zeros((TILE,), tl.float32)
    for _ in range(W):
        total += load_number(at, i, inside, full) * weight
        at += stride
    store_tile(x + start + i, total, inside, full)


def encode_casts_many(message: Tensor, many: TensorList, dtype: torch.dtype) -> Tensor:
    tiles, marks = many.tiles(TILE), many.marks()
    launch(_encode, (tiles.shape[0],), many.table, tiles, many.like, message.view(dtype), marks.clean,
           torch.finfo(dtype).max, HAS_MEMORY=many.memories is not None, HAS_REST=many.rests is not None, EVEN=many.even,
           TILE=TILE)  # fmt: skip
    return many.all_of(marks.clean)


def sum_casts_many(rows: Tensor, many: TensorList, dtype: torch.dtype, weight: float) -> None:
    tiles, numbers = many.tiles(TILE), rows.view(dtype)
    launch(_sum, (tiles.shape[0],), many.table, tiles, many.like, numbers, len(numbers), numbers.stride(0), weight,
           EVEN=many.even, TILE=TILE)  # fmt: skip
