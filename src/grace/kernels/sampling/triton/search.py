"""The units of several tensors, as :mod:`grace.kernels.sampling.units` finds them: each round is a launch for all of them.

Sums are formed piece by piece, and joined in order by each program of the next launch. For a variance six rounds are launched
whatever they find; where these are not enough, one program of the tensor goes on alone, until it ends.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import launch
from grace.kernels.blocks import block_count
from grace.kernels.sampling.parts import Chances
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import numbers_of, tile_of, wire_of
from grace.kernels.triton import halves, load_number

PIECE, LANES = 4096, 16  # of ordered sums
ROWS = 4  # pieces of a program
_ROUNDS = 6  # that are launched for a variance
_LAST = 16  # pieces that a program that goes on alone reads at a time
_FLOAT = torch.finfo(torch.float32)


@triton.jit
def joined(at, pieces):
    """float64: the sums of pieces, added in order."""
    total = tl.load(at)
    for j in tl.range(1, pieces, loop_unroll_factor=8):
        total += tl.load(at + j)
    return total


@triton.jit
def numbers_at(table, heads, like, row, EVEN: tl.constexpr):
    """(where the numbers of a row begin, n, its first piece of those of all, how many it has)"""
    x, start = numbers_of(table, row, like, EVEN)
    _place, n = wire_of(table, row)
    return x + start, n, tl.load(heads + row), (n + 4095) // 4096


@triton.jit
def _sums_below(x, n, j, unit, turns, SQUARES: tl.constexpr, ROWS: tl.constexpr):
    """float64 ``[ROWS]`` twice, of pieces j: the sum of the magnitudes that are below the unit; how many they are, or the sum
    of their squares.
    """
    limit = unit.to(tl.float32)
    left = tl.minimum(tl.maximum(n - j * 4096, 0), 4096).to(tl.int32)[:, None]
    lane = tl.arange(0, 16)[None, :]
    total = tl.zeros((ROWS, 16), tl.float64)
    second = tl.zeros((ROWS, 16), tl.float64)
    for t in tl.range(0, turns, loop_unroll_factor=8):
        inside = lane + 16 * t < left
        size = tl.abs(load_number(x + (j * 4096)[:, None], lane + 16 * t, inside))
        below = inside & (size < limit)
        kept = tl.where(below, size, 0.0).to(tl.float64)
        total += kept
        if SQUARES:
            second += kept * kept
        else:
            second += below.to(tl.float64)
    return halves(total, ROWS), halves(second, ROWS)


@triton.jit
def _unit_of(total, second, old, goal, spread, n, FIRST: tl.constexpr, SQUARES: tl.constexpr):
    """float64: the next unit, from the sums of what is below the old one; the old one where it is the last."""
    if SQUARES:
        missing = total
        better = (spread + second) / total
    else:
        missing = goal
        if FIRST == 0:
            missing = goal - n.to(tl.float64) + second
        better = total / missing
    last = (missing <= 0) | (total == 0) | (better >= old)
    return tl.where(last, old, better)


@triton.jit
def _next_unit(before, plane, head, pieces, units, goals, spreads, row, n, FIRST: tl.constexpr, SQUARES: tl.constexpr):
    """(float64: the next unit, the one before, the goal, of a variance what it is in all), from the sums of pieces. All
    programs of a row write the same.
    """
    total, second = joined(before + head, pieces), joined(before + plane + head, pieces)
    old, goal, spread = tl.load(units + row), tl.load(goals + row), total
    if SQUARES:
        if FIRST:
            spread = goal * second
            tl.store(spreads + row, spread)
        else:
            spread = tl.load(spreads + row)
    return _unit_of(total, second, old, goal, spread, n, FIRST, SQUARES), old, goal, spread


@triton.jit
def _look(
    table, programs, heads, like, goals, spreads, before, after, units, following, plane, turns,
    START: tl.constexpr, FIRST: tl.constexpr, SQUARES: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``following [rows]``: the units that follow from the sums ``before [2, plane]`` of what is below ``units [rows]``;
    ``after``: the sums of what is below those. START: nothing is known, and everything is below.

    ``goals [rows]``: the count, or epsilon; ``spreads [rows]``: the variance, once it is known.
    """
    row, tile = tile_of(programs)
    x, n, head, pieces = numbers_at(table, heads, like, row, EVEN)
    j = tile * ROWS + tl.arange(0, ROWS)
    at = head + j
    if START:
        total, second = _sums_below(x, n, j, tl.load(units + row), turns, SQUARES, ROWS)
    else:
        unit, old, _goal, _spread = _next_unit(
            before, plane, head, pieces, units, goals, spreads, row, n, FIRST, SQUARES
        )
        tl.store(following + row, unit)
        same = unit == old
        total, second = _sums_below(x, n, j, unit, tl.where(same, 0, turns), SQUARES, ROWS)
        total = tl.where(same, tl.load(before + at, j < pieces, 0.0), total)
        second = tl.where(same, tl.load(before + plane + at, j < pieces, 0.0), second)
    tl.store(after + at, total, j < pieces)
    tl.store(after + plane + at, second, j < pieces)


@triton.jit
def _end(
    table, heads, like, goals, spreads, before, units, out, plane, turns, LEAST: tl.constexpr, MOST: tl.constexpr,
    FIRST: tl.constexpr, SQUARES: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``out [rows]`` float32: the units that these rounds end with, kept in range."""
    row = tl.program_id(0).to(tl.int64)
    x, n, head, pieces = numbers_at(table, heads, like, row, EVEN)
    unit, old, goal, spread = _next_unit(before, plane, head, pieces, units, goals, spreads, row, n, FIRST, SQUARES)
    if SQUARES:
        lane = tl.arange(0, ROWS)
        while unit < old:
            total, second = unit - unit, unit - unit
            for first in range(0, pieces, ROWS):
                parts, others = _sums_below(x, n, first + lane, unit, turns, SQUARES, ROWS)
                for r in tl.static_range(ROWS):
                    total += tl.sum(tl.where(lane == r, parts, 0.0), 0)
                    second += tl.sum(tl.where(lane == r, others, 0.0), 0)
            old = unit
            unit = _unit_of(total, second, old, goal, spread, n, False, SQUARES)
    tl.store(out + row, tl.minimum(tl.maximum(unit, LEAST), MOST).to(tl.float32))


def find_units(many: TensorList, chances: Chances) -> Tensor:
    """float32 ``[T]``: the units of several tensors of finite numbers, the largest of those without a number that is not 0."""
    squares, T, device = bool(chances.epsilon), len(many), many.device
    rounds = _ROUNDS if squares else chances.rounds
    heads, tiles = many.heads(PIECE), many.tiles(PIECE * ROWS)
    plane, turns = sum(many.counts(PIECE)), block_count(min(max(many.sizes), PIECE), LANES)

    goals = many.numbers(
        ("goals", chances), lambda: [chances.epsilon or chances.count(n) for n in many.sizes], torch.float64
    )
    spreads = torch.empty_like(goals)
    sums = torch.empty(2, 2, plane, dtype=torch.float64, device=device)
    units = torch.full((2, T), torch.inf, dtype=torch.float64, device=device)
    how: dict[str, Any] = {"SQUARES": squares, "EVEN": many.even}
    for r in range(rounds + 1):
        launch(_look, (len(tiles),), many.table, tiles, heads, many.like, goals, spreads, sums[(r + 1) % 2], sums[r % 2],
               units[(r + 1) % 2], units[r % 2], plane, turns, START=r == 0, FIRST=r == 1, ROWS=ROWS, **how)  # fmt: skip
    out = torch.empty(T, dtype=torch.float32, device=device)
    launch(_end, (T,), many.table, heads, many.like, goals, spreads, sums[rounds % 2], units[rounds % 2], out, plane, turns,
           LEAST=_FLOAT.tiny, MOST=_FLOAT.max, FIRST=rounds == 0, ROWS=_LAST, **how)  # fmt: skip
    return out
