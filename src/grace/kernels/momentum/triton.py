"""Momentum correction as Triton kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, check_rows, launch
from grace.kernels.blocks import block_count
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import load_number


@triton.jit(do_not_specialize=["momentum"])
def _accelerate(x, memory, out, n, momentum, NESTEROV: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    g = tl.load(x + i, inside, 0.0)
    u = tl.load(memory + i, inside, 0.0)
    v = tl.load(memory + n + i, inside, 0.0)
    if NESTEROV:
        u = (u + g) * momentum
        v = v + u + g
    else:
        u = u * momentum + g
        v = v + u
    tl.store(out + i, u, inside)
    tl.store(out + n + i, v, inside)


@triton.jit
def _forget(u, v, x, rest, n, HAS_X: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    velocity = tl.load(u + i, inside, 0.0)
    p = tl.load(v + i, inside, 0.0) + velocity
    if HAS_X:
        p = p + tl.load(x + i, inside, 0.0)
    tl.store(u + i, tl.where(p != tl.load(rest + i, inside, 0.0), 0.0, velocity), inside)


@triton.jit(do_not_specialize=["momentum"])
def _accelerate_many(
    table, programs, like, rooms, momentum, NESTEROV: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr
):
    row, tile = tile_of(programs)
    x, _start = numbers_of(table, row, like, EVEN)
    _place, n = wire_of(table, row)
    i = tile * TILE + tl.arange(0, TILE)
    inside = i < n
    memory = tensor_of(table, row, 1, EVEN)
    g = load_number(x, i, inside)
    u = tl.load(memory + i, inside, 0.0)
    if NESTEROV:
        u = (u + g) * momentum
        tl.store(tensor_of(rooms, row, 1, EVEN) + i, tl.load(memory + n + i, inside, 0.0) + u, inside)
        tl.store(tensor_of(rooms, row, 0, EVEN) + i, g, inside)
    else:
        u = u * momentum + g
        tl.store(tensor_of(rooms, row, 0, EVEN) + i, u, inside)
    tl.store(tensor_of(table, row, 2, EVEN) + i, u, inside)


@triton.jit
def _forget_many(table, programs, like, masked, NESTEROV: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr):
    row, tile = tile_of(programs)
    if tl.load(masked + row) != 0:
        _place, n = wire_of(table, row)
        i = tile * TILE + tl.arange(0, TILE)
        inside = i < n
        rest = tensor_of(table, row, 2, EVEN)
        velocity = tl.load(rest + i, inside, 0.0)
        p = tl.load(tensor_of(table, row, 1, EVEN) + n + i, inside, 0.0) + velocity
        if NESTEROV:
            x, _start = numbers_of(table, row, like, EVEN)
            p = p + load_number(x, i, inside)
        tl.store(rest + i, tl.where(p != tl.load(rest + n + i, inside, 0.0), 0.0, velocity), inside)


def accelerate(x: Tensor, memory: Tensor, momentum: float, nesterov: bool, out: Tensor) -> Any:
    if not _plain(x, memory, out):
        return NotImplemented
    check_rows(memory=memory, out=out)
    n = x.numel()
    launch(_accelerate, (block_count(n, TILE),), x, memory, out, n, momentum, NESTEROV=nesterov, TILE=TILE)
    return None


def forget_sent(u: Tensor, v: Tensor, x: Tensor | None, rest: Tensor) -> Any:
    if not _plain(u, v, rest, *([] if x is None else [x])):
        return NotImplemented
    check_rows(u=u, v=v, x=x, rest=rest)
    n = u.numel()
    launch(_forget, (block_count(n, TILE),), u, v, x, rest, n, HAS_X=x is not None, TILE=TILE)
    return None


def accelerate_many(like: Tensor, many: TensorList, rooms: TensorList, momentum: float, *, nesterov: bool) -> None:
    tiles = many.tiles(TILE)
    launch(_accelerate_many, (len(tiles),), many.table, tiles, many.like, rooms.table, momentum, NESTEROV=nesterov,
           EVEN=many.even and rooms.even, TILE=TILE)  # fmt: skip


def forget_many(masked: Tensor, many: TensorList, *, nesterov: bool) -> None:
    tiles = many.tiles(TILE)
    launch(
        _forget_many, (len(tiles),), many.table, tiles, many.like, masked, NESTEROV=nesterov, EVEN=many.even, TILE=TILE
    )


def _plain(*tensors: Tensor) -> bool:
    """True if the kernels take them."""
    return all(t.dtype is torch.float32 and t.is_contiguous() for t in tensors)
