"""Copies between the tensors of a bucket and their rooms as Triton kernels."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, launch
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import add_product, load_number, load_sum, load_tile, magnitude, mark_if, store_tile
from grace.kernels.triton.tiles import left_of


@triton.jit
def _lanes(tile, n, TILE: tl.constexpr):
    """(int64: the first number of a tile; int32: its lanes; which of them are inside, whether all are)"""
    first, lane = tile * TILE, tl.arange(0, TILE)
    left = left_of(n, first, TILE)
    return first, lane, lane < left, left == TILE


@triton.jit
def _pad(table, programs, like, rooms, HAS_MEMORY: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr):
    """A program: a tile of a room."""
    task, tile = tile_of(programs)
    _place, n = wire_of(table, task)
    _place, m = wire_of(rooms, task)
    first, lane, inside, full = _lanes(tile, n, TILE)
    _first, _lane, there, entire = _lanes(tile, m, TILE)
    x, _start = numbers_of(table, task, like, EVEN)
    room, _start = numbers_of(rooms, task, like, EVEN)
    store_tile(room + first + lane, load_tile(x + first + lane, inside, full), there, entire)
    if HAS_MEMORY:
        e = load_tile(tensor_of(table, task, 1, EVEN) + first + lane, inside, full)
        store_tile(tensor_of(rooms, task, 1, EVEN) + first + lane, e, there, entire)


@triton.jit
def _sum(table, programs, like, HAS_MEMORY: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    x, _start = numbers_of(table, task, like, EVEN)
    _place, n = wire_of(table, task)
    first, lane, inside, full = _lanes(tile, n, TILE)
    total = load_sum(x + first, tensor_of(table, task, 1, EVEN) + first, lane, inside, HAS_MEMORY, full)
    store_tile(tensor_of(table, task, 2, EVEN) + first + lane, total, inside, full)


@triton.jit(do_not_specialize=["share"])
def _weigh(table, programs, like, weights, share, ONCE: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    x, _start = numbers_of(table, task, like, EVEN)
    _place, n = wire_of(table, task)
    first, lane, inside, full = _lanes(tile, n, TILE)
    part = load_number(x + first, lane, inside, full) * share
    if like.dtype.element_ty == tl.int16:
        part = (_bfloat16_word(part) << 16).to(tl.float32, bitcast=True)
    else:
        part = part.to(like.dtype.element_ty).to(tl.float32)
    e = load_tile(tensor_of(table, task, 1, EVEN) + first + lane, inside, full)
    if ONCE:
        total = add_product(part, tl.load(weights + task), e)
    else:
        total = part + tl.load(weights + task) * e
    store_tile(tensor_of(table, task, 2, EVEN) + first + lane, total, inside, full)


@triton.jit
def _fetch(table, programs, rooms, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    _place, n = wire_of(table, task)
    first, lane, inside, full = _lanes(tile, n, TILE)
    number = load_tile(tensor_of(rooms, task, 0, EVEN) + first + lane, inside, full)
    store_tile(tensor_of(table, task, 0, EVEN) + first + lane, number, inside, full)


@triton.jit
def _clear(table, programs, like, flags, b, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    if tl.load(flags + task // b) == 0:
        x, start = numbers_of(table, task, like, EVEN)
        _place, n = wire_of(table, task)
        i = tile * TILE + tl.arange(0, TILE)
        tl.store(x + start + i, tl.zeros((TILE,), tl.float32), i < n)


@triton.jit
def _look(table, programs, like, marks, LEAST: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr):
    """A mark for each tensor that has a magnitude whose word, as float32, is LEAST or more."""
    task, tile = tile_of(programs)
    x, _start = numbers_of(table, task, like, EVEN)
    _place, n = wire_of(table, task)
    first, lane, inside, full = _lanes(tile, n, TILE)
    mark_if(marks + task, magnitude(load_number(x + first, lane, inside, full)) >= LEAST)


@triton.jit
def _bfloat16_word(number):
    """int32: the bits of the nearest bfloat16, of two the even one; those of large numbers are inf's."""
    size = magnitude(number)
    size = ((size + 0x7FFF + ((size >> 16) & 1)) & ~0xFFFF) | (number.to(tl.int32, bitcast=True) & ~0x7FFFFFFF)
    return size >> 16


@triton.jit
def store_rounded(x, i, inside, number, full=False):
    """Stores numbers as x's type, float16 or words of bfloat16, to nearest and even. float32: what they are then."""
    if x.dtype.element_ty == tl.int16:
        word = _bfloat16_word(number)
        rounded = (word << 16).to(tl.float32, bitcast=True)
        store_tile(x + i, word.to(tl.int16), inside, full)
    else:
        narrow = number.to(x.dtype.element_ty)
        rounded = narrow.to(tl.float32)
        store_tile(x + i, narrow, inside, full)
    return rounded


@triton.jit
def _scale(table, programs, like, factors, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    factor = tl.load(factors + task)
    if factor != 1:
        x, _start = numbers_of(table, task, like, EVEN)
        _place, n = wire_of(table, task)
        first, lane, inside, full = _lanes(tile, n, TILE)
        number = load_number(x + first, lane, inside, full) * factor
        store_rounded(x + first, lane, inside, number, full)


@triton.jit
def _narrow(table, programs, like, rooms, marks, HAS_REST: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    _place, n = wire_of(table, task)
    first, lane, inside, full = _lanes(tile, n, TILE)
    x, _start = numbers_of(table, task, like, EVEN)
    mean = load_tile(tensor_of(rooms, task, 0, EVEN) + first + lane, inside, full)
    rounded = store_rounded(x + first, lane, inside, mean, full)
    mark_if(marks + task, (magnitude(rounded) >= 0x7F800000) | (magnitude(mean) >= 0x7F800000))
    if HAS_REST:
        rest = tensor_of(table, task, 2, EVEN) + first + lane
        store_tile(rest, load_tile(rest, inside, full) + (mean - rounded), inside, full)


@triton.jit(do_not_specialize=["weight"])
def _round(table, programs, like, rounded, marks, weight, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    _place, n = wire_of(table, task)
    first, lane, inside, full = _lanes(tile, n, TILE)
    wire, _start = numbers_of(rounded, task, like, EVEN)
    product = load_tile(tensor_of(table, task, 0, EVEN) + first + lane, inside, full) * weight
    mark_if(marks + task, magnitude(product) >= 0x7F800000)
    store_rounded(wire + first, lane, inside, product, full)


@triton.jit
def _widen(table, programs, like, rounded, marks, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    _place, n = wire_of(table, task)
    first, lane, inside, full = _lanes(tile, n, TILE)
    wire, _start = numbers_of(rounded, task, like, EVEN)
    number = load_number(wire + first, lane, inside, full)
    mark_if(marks + task, magnitude(number) >= 0x7F800000)
    store_tile(tensor_of(table, task, 0, EVEN) + first + lane, tl.where(number == 0, 0.0, number), inside, full)


def pad_many(storage: Tensor, many: TensorList, rooms: TensorList) -> None:
    tiles = rooms.tiles(TILE)
    launch(_pad, (tiles.shape[0],), many.table, tiles, many.like, rooms.table, HAS_MEMORY=many.memories is not None,
           EVEN=many.even and rooms.even, TILE=TILE)  # fmt: skip


def sum_many(like: Tensor, many: TensorList) -> None:
    tiles = many.tiles(TILE)
    launch(_sum, (tiles.shape[0],), many.table, tiles, like, HAS_MEMORY=many.memories is not None, EVEN=many.even,
           TILE=TILE)  # fmt: skip


def weigh_many(weights: Tensor, share: float, many: TensorList, *, once: bool = True) -> None:
    tiles = many.tiles(TILE)
    launch(
        _weigh, (tiles.shape[0],), many.table, tiles, many.like, weights, share, ONCE=once, EVEN=many.even, TILE=TILE
    )


def fetch_many(storage: Tensor, rooms: TensorList, many: TensorList) -> None:
    tiles = many.tiles(TILE)
    launch(_fetch, (tiles.shape[0],), many.table, tiles, rooms.table, EVEN=many.even and rooms.even, TILE=TILE)


def scale_many(factors: Tensor, many: TensorList) -> None:
    tiles = many.tiles(TILE)
    launch(_scale, (tiles.shape[0],), many.table, tiles, many.like, factors.float(), EVEN=many.even, TILE=TILE)


def clear_many(flags: Tensor, many: TensorList) -> None:
    tiles = many.tiles(TILE)
    launch(_clear, (tiles.shape[0],), many.table, tiles, many.like, flags, many.rows, EVEN=many.even, TILE=TILE)


def finite_many(flags: Tensor, many: TensorList) -> Tensor:
    return flags & _all_below(many, 0x7F800000)


def nonzero_many(flags: Tensor, many: TensorList) -> Tensor:
    return flags & ~_all_below(many, 1)


def _all_below(many: TensorList, least: int) -> Tensor:
    """``[T]`` bool: of which tensors no magnitude's word reaches this."""
    tiles, marks = many.tiles(TILE), many.marks()
    launch(_look, (tiles.shape[0],), many.table, tiles, many.like, marks.clean, LEAST=least, EVEN=many.even, TILE=TILE)
    return many.all_of(marks.clean)


def narrow_many(flags: Tensor, rooms: TensorList, many: TensorList) -> Tensor:
    tiles, marks = many.tiles(TILE), many.marks()
    launch(_narrow, (tiles.shape[0],), many.table, tiles, many.like, rooms.table, marks.clean,
           HAS_REST=many.rests is not None, EVEN=many.even and rooms.even, TILE=TILE)  # fmt: skip
    return flags & many.all_of(marks.clean)


def round_many(message: Tensor, many: TensorList, rounded: TensorList, weight: float) -> Tensor:
    tiles, marks = many.tiles(TILE), many.marks()
    launch(_round, (tiles.shape[0],), many.table, tiles, rounded.like, rounded.table, marks.clean, weight,
           EVEN=many.even and rounded.even, TILE=TILE)  # fmt: skip
    return many.all_of(marks.clean)


def widen_many(message: Tensor, rounded: TensorList, many: TensorList) -> Tensor:
    tiles, marks = many.tiles(TILE), many.marks()
    launch(_widen, (tiles.shape[0],), many.table, tiles, rounded.like, rounded.table, marks.clean,
           EVEN=many.even and rounded.even, TILE=TILE)  # fmt: skip
    return many.all_of(marks.clean)
