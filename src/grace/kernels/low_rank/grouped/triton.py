"""Thin factors of many matrices by Triton kernels, those of single ones."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, launch
from grace.flags.capturing import step_word
from grace.kernels.blocks import block_count
from grace.kernels.low_rank.grouped import Factors
from grace.kernels.low_rank.parts import PIECE, SPAN
from grace.kernels.low_rank.triton import (
    COLUMNS,
    DOWN,
    LEFT,
    RANKS,
    RIGHT,
    ROWS,
    add_kernel,
    columns_kernel,
    join_kernel,
    rows_kernel,
    split_kernel,
)
from grace.kernels.low_rank.triton.bases import (
    HALF,
    LOG,
    TINY,
    fit_kernel,
    orthonormalize_into,
    succeed_kernel,
    turn_kernel,
    unit_rows_kernel,
)
from grace.kernels.low_rank.triton.ridge import solve_into, unit_columns_into
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import key_of, tensor_of, tile_of, wire_of
from grace.random.triton import NORMAL, normals_of

GROUPS = 256  # pairs of numbers that a program draws
_NO_SIDES = (None, None, None)  # m, l, r: of one matrix


@triton.jit(do_not_specialize=["step"])
def draw_kernel(
    table, programs, step,
    LOG_2: tl.constexpr, ROOT_HALF: tl.constexpr, TURN: tl.constexpr, LOG_TERMS: tl.constexpr, ANGLE_TERMS: tl.constexpr,
    EVEN: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Normal numbers of a tensor's stream, in their order."""
    task, tile = tile_of(programs)
    _place, n = wire_of(table, task)
    key0, key1 = key_of(table, task)
    group = tile * GROUPS + tl.arange(0, GROUPS)
    first, second = normals_of(key0, key1, step, group, LOG_2, ROOT_HALF, TURN, LOG_TERMS, ANGLE_TERMS)
    at = tensor_of(table, task, 0, EVEN) + 2 * group
    tl.store(at, first, 2 * group < n)
    tl.store(at + 1, second, 2 * group + 1 < n)


def draw_many(storage: Tensor, drawn: TensorList, step: int) -> None:
    tiles = drawn.tiles(2 * GROUPS)
    launch(draw_kernel, (len(tiles),), drawn.table, tiles, step_word(step, drawn.device), **NORMAL, EVEN=drawn.even,
           GROUPS=GROUPS)  # fmt: skip


def unit_rows_many(rights: Tensor, states: TensorList, factors: Factors) -> None:
    programs = factors.programs([r for _, _, r in factors.sides])
    work = torch.empty(len(rights), dtype=torch.float64, device=rights.device)
    launch(unit_rows_kernel, (len(programs),), states.table, factors.table, programs, rights, work, TINY=TINY,
           EVEN=states.even, LOG=LOG)  # fmt: skip


def unit_columns_many(
    lefts: Tensor, columns: TensorList, factors: Factors, drawn: TensorList | None, share: float
) -> None:
    even = columns.even and (drawn is None or drawn.even)
    table = None if drawn is None else drawn.table
    unit_columns_into(lefts, len(factors.sides), columns.table, factors.table, table, share, even)


def solve_ridge_many(lefts: Tensor, narrow: Tensor, factors: Factors, lam: float) -> None:
    x = torch.empty_like(lefts, dtype=torch.float64)
    solve_into(x, lefts, lam, [r for _, _, r in factors.sides], narrow, factors.table)


def project_rows_many(message: Tensor, matrices: TensorList, factors: Factors, rights: Tensor) -> None:
    programs = factors.programs([block_count(m, RIGHT) * block_count(l, SPAN) for m, l, _ in factors.sides])
    sums = message.new_empty(factors.row_sums)
    launch(rows_kernel, (len(programs),), matrices.table, factors.table, programs, None, rights, sums, message,
           *_NO_SIDES, MANY=True, EVEN=matrices.even, RANKS=RANKS, ROWS=RIGHT)  # fmt: skip
    _join(factors, sums, message, along=True)


def project_columns_many(rights: Tensor, matrices: TensorList, factors: Factors, lefts: Tensor) -> None:
    programs = factors.programs([block_count(l, LEFT) * block_count(m, PIECE) for m, l, _ in factors.sides])
    sums = rights.new_empty(factors.column_sums)
    launch(columns_kernel, (len(programs),), matrices.table, factors.table, programs, None, lefts, sums, rights,
           *_NO_SIDES, MANY=True, EVEN=matrices.even, RANKS=RANKS, **DOWN)  # fmt: skip
    _join(factors, sums, rights, along=False)


def _join(factors: Factors, sums: Tensor, out: Tensor, *, along: bool) -> None:
    """Adds up the pieces of rows, or columns, that have several."""
    size, way = (SPAN, 1) if along else (PIECE, 0)
    counts = [block_count(of[2] * of[1 - way], TILE) * (of[way] > size) for of in factors.sides]
    if any(counts):
        programs = factors.programs(counts)
        launch(join_kernel, (len(programs),), factors.table, programs, sums, out, *_NO_SIDES, MANY=True, ALONG=along,
               TILE=TILE)  # fmt: skip


def orthonormalize_many(lefts: Tensor, message: Tensor, factors: Factors) -> None:
    orthonormalize_into(lefts, message, len(factors.sides), factors.table)


def fit_many(rights: Tensor, factors: Factors, lefts: Tensor, matrices: TensorList, poison: bool) -> Tensor:
    count = len(factors.sides)
    marks = Marks(rights, count)
    launch(fit_kernel, (count,), factors.table, lefts, rights, marks.clean, HALF=HALF, POISON=poison, LOG=LOG)
    return marks.clean


def split_low_rank_many(
    lefts: Tensor, matrices: TensorList, factors: Factors, owns: Tensor | None, rights: Tensor
) -> None:
    programs = factors.programs([block_count(m, ROWS) * block_count(l, COLUMNS) for m, l, _ in factors.sides])
    launch(split_kernel, (len(programs),), matrices.table, factors.table, programs, None, lefts,
           rights if owns is None else owns, rights, None, *_NO_SIDES, HAS_X=owns is not None, MANY=True,
           EVEN=matrices.even, ROWS=ROWS, COLUMNS=COLUMNS)  # fmt: skip


def succeed_many(flags: Tensor, states: TensorList, factors: Factors, rights: Tensor) -> None:
    tiles = states.tiles(TILE)
    launch(
        succeed_kernel, (len(tiles),), states.table, factors.table, tiles, flags, rights, EVEN=states.even, TILE=TILE
    )


def add_low_rank_many(lefts: Tensor, matrices: TensorList, factors: Factors, rights: Tensor, scale: float) -> None:
    programs = factors.programs([block_count(m, ROWS) * block_count(l, COLUMNS) for m, l, _ in factors.sides])
    launch(add_kernel, (len(programs),), matrices.table, factors.table, programs, None, lefts, rights, *_NO_SIDES, scale,
           MANY=True, EVEN=matrices.even, ROWS=ROWS, COLUMNS=COLUMNS)  # fmt: skip


def gather_rows_many(flat: Tensor, columns: TensorList, factors: Factors, right: bool) -> None:
    _turn(flat, columns, factors, right, gather=True)


def scatter_rows_many(flat: Tensor, columns: TensorList, factors: Factors, right: bool) -> None:
    _turn(flat, columns, factors, right, gather=False)


def _turn(flat: Tensor, columns: TensorList, factors: Factors, right: bool, *, gather: bool) -> None:
    tiles = columns.tiles(TILE)
    launch(turn_kernel, (len(tiles),), columns.table, factors.table, tiles, flat, SIDE=int(right), GATHER=gather,
           EVEN=columns.even, TILE=TILE)  # fmt: skip
