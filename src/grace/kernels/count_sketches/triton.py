"""Count sketches as Triton kernels, for the tensors of a bucket.

A cell is a sum of many numbers in their order. So numbers are sorted by their cells, which keeps that order, and a thread adds
up those of a cell; the order in which programs run changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, launch, power_of_two
from grace.flags.capturing import step_word
from grace.kernels.count_sketches import sketch_unit
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import key_of, numbers_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import load_number, magnitude, mark_if, negated
from grace.random.triton import threefry

_CELLS, _QUERIES = 128, 2048  # cells of a program, and how many cells it reads


@triton.jit
def modulo(v):
    """int64: the remainder of v by 2**31 - 1; ``0 <= v < 2**62``."""
    v = (v & 0x7FFFFFFF) + (v >> 31)
    return tl.where(v >= 0x7FFFFFFF, v - 0x7FFFFFFF, v)


@triton.jit
def coefficients_at(key0, key1, step, group):
    """(int64, int64): the two coefficients that group ``group`` of a stream's words holds, below 2**31 - 1."""
    low, high = threefry(key0, key1, group.to(tl.uint32), step)
    return modulo(low.to(tl.int64)), modulo(high.to(tl.int64))


@triton.jit
def sign_at(key0, key1, step, row, R):
    """The four coefficients of the signs of a row of the sketch, of R."""
    a, b = coefficients_at(key0, key1, step, R + 2 * row)
    c, d = coefficients_at(key0, key1, step, R + 2 * row + 1)
    return tl.maximum(a, 1), b, c, d


@triton.jit
def is_minus(a, b, c, d, i):
    """int64, 0 or 1: whether numbers i are taken with a minus."""
    v = modulo(modulo(a * i + b) * i + c)
    return modulo(v * i + d) & 1


@triton.jit
def cell_at(key0, key1, step, row, i, cols):
    """int64: the cells of numbers i in a row of the sketch."""
    a, b = coefficients_at(key0, key1, step, row)
    return (modulo(tl.maximum(a, 1) * i + b).to(tl.uint32) % cols.to(tl.uint32)).to(tl.int64)


@triton.jit(do_not_specialize=["step", "row"])
def _assign(table, programs, heads, shapes, cells, step, row, TILE: tl.constexpr):
    """``cells``, int32, for each number of all tensors: its cell in a row of the sketch, of the cells of all tensors."""
    task, tile = tile_of(programs)
    _place, n = wire_of(table, task)
    key0, key1 = key_of(table, task)
    cols, first = tl.load(shapes + 2 * task), tl.load(shapes + 2 * task + 1)
    i = tile * TILE + tl.arange(0, TILE)
    cell = cell_at(key0, key1, step, row + tl.arange(0, 1), i, cols)
    tl.store(cells + tl.load(heads + task) + i, (first + cell).to(tl.int32), i < n)


@triton.jit(do_not_specialize=["step", "row"])
def _add(
    table, programs, heads, shapes, units, ends, order, like, message, R, step, row,
    HELD: tl.constexpr, EVEN: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """The sums of a row's cells. ``order``: the numbers of all tensors, those of a cell side by side; ``ends``, of the cells
    of all tensors: how many numbers there are before each.
    """
    task, tile = tile_of(programs)
    x, _start = numbers_of(table, task, like, EVEN)
    if HELD:
        x = tensor_of(table, task, 2, EVEN)
    place, _n = wire_of(table, task)
    key0, key1 = key_of(table, task)
    cols, first = tl.load(shapes + 2 * task), tl.load(shapes + 2 * task + 1)
    head = tl.load(heads + task)
    cell = tile * CELLS + tl.arange(0, CELLS)
    inside = cell < cols
    begin = tl.load(ends + first + cell, inside, 0)
    end = tl.load(ends + first + cell + 1, inside, 0)
    a, b, c, d = sign_at(key0, key1, step, row + tl.arange(0, 1), R)
    total = tl.zeros((CELLS,), tl.float64)
    for t in tl.range(
        0, tl.max(end - begin, 0).to(tl.int32), loop_unroll_factor=8
    ):  # so that eight loads are under way
        there = begin + t < end
        i = tl.load(order + begin + t, there, head) - head
        p = load_number(x, i, there)
        total += tl.where(is_minus(a, b, c, d, i) > 0, negated(p), p).to(tl.float64)
    tl.store(message + place // 4 + row * cols + cell, (total * tl.load(units + 2 * task)).to(tl.float32), inside)


@triton.jit(do_not_specialize=["step"])
def _read(
    table, programs, shapes, units, message, marks, R, step,
    LARGEST: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Estimates of numbers from sketches. ROWS: R, or a power of two above it."""
    task, tile = tile_of(programs)
    place, n = wire_of(table, task)
    key0, key1 = key_of(table, task)
    cols = tl.load(shapes + 2 * task)
    i = tile * TILE + tl.arange(0, TILE)
    row = tl.arange(0, ROWS)[None, :]
    there = (row < R) & (i < n)[:, None]
    at = message + place // 4 + row * cols
    value = tl.load(at + cell_at(key0, key1, step, row, i[:, None], cols), there, float("inf"))
    bad = there & (magnitude(value) >= 0x7F800000)
    mark_if(marks + task, bad)
    a, b, c, d = sign_at(key0, key1, step, row, R)
    value = tl.where(there & (is_minus(a, b, c, d, i[:, None]) > 0), negated(value), value)
    value = tl.sort(value, 1)
    median = tl.sum(tl.where(row == (R - 1) // 2, value, 0.0), 1)
    estimate = median * tl.load(units + 2 * task + 1).to(tl.float32)
    estimate = tl.where(estimate > LARGEST, LARGEST, tl.where(estimate < -LARGEST, -LARGEST, estimate))
    estimate = tl.where(tl.max(bad.to(tl.int32), 1) > 0, float("nan"), estimate)
    tl.store(tensor_of(table, task, 0, EVEN) + i, estimate, i < n)


def count_sketches_many(message: Tensor, many: TensorList, rows: int, cols: tuple[int, ...], step: int) -> None:
    tiles, owned = many.tiles(TILE), many.pairs(("cells", cols), lambda: [-(-c // _CELLS) for c in cols])
    heads, shapes, units, word = many.heads(1), _shapes(many, cols), _units(many), step_word(step, many.device)
    every = many.numbers(("every", cols), lambda: range(sum(cols) + 1), torch.int32)
    cells = torch.empty(sum(many.sizes), dtype=torch.int32, device=many.device)
    for row in range(rows):
        launch(_assign, (len(tiles),), many.table, tiles, heads, shapes, cells, word, row, TILE=TILE)
        ascending, order = torch.sort(cells, stable=True)
        launch(_add, (len(owned),), many.table, owned, heads, shapes, units, torch.searchsorted(ascending, every), order,
               many.like, message, rows, word, row, HELD=many.rests is not None, EVEN=many.even, CELLS=_CELLS)  # fmt: skip


def read_sketches_many(message: Tensor, many: TensorList, rows: int, cols: tuple[int, ...], step: int) -> Tensor:
    width, marks = power_of_two(rows), Marks(message, len(many))
    tile = max(1, _QUERIES // width)
    tiles = many.tiles(tile)
    launch(_read, (len(tiles),), many.table, tiles, _shapes(many, cols), _units(many), message, marks.clean, rows,
           step_word(step, many.device), LARGEST=torch.finfo(torch.float32).max, EVEN=many.even, ROWS=width,
           TILE=tile)  # fmt: skip
    return many.all_of(marks.clean)


def _shapes(many: TensorList, cols: tuple[int, ...]) -> Tensor:
    """int64 ``[T, 2]``: how many columns each sketch has, and how many all before it have."""
    return many.kept(cols).view(-1, 2)


def _units(many: TensorList) -> Tensor:
    """float64 ``[T, 2]``: what sums are multiplied by, and its inverse."""

    def make() -> Sequence[float]:
        return [unit for n in many.sizes for unit in (sketch_unit(n), 1 / sketch_unit(n))]

    return many.numbers("units", make, torch.float64)
