"""Triton's thin factors, of one matrix and of those of a bucket, in its interpreter, against the specification."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace import kernels
from grace.compute import backends
from grace.errors import InputError
from grace.flags.finite import cpu_as_accelerator
from grace.kernels.low_rank.grouped import (
    Factors,
    add_low_rank_many,
    draw_many,
    fit_many,
    gather_rows_many,
    orthonormalize_many,
    project_columns_many,
    project_rows_many,
    scatter_rows_many,
    solve_ridge_many,
    split_low_rank_many,
    succeed_many,
    unit_columns_many,
    unit_rows_many,
)
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import key_of
from grace.random import Stream
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import agree, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]

CPU = torch.device("cpu")
# m, l, r: longer than what a program adds up, in one way or the other; more rows of a factor than are taken at a time
SMALL = ((1, 1, 1), (2, 3, 1), (9, 17, 2))
FEW = {
    "rows": ((2, 3, 1), (1, 1030, 1)), "columns": ((2, 3, 1), (258, 1, 1)), "bases": ((1, 1, 1), (1030, 3, 2), (5, 2, 2)),
    "units": ((1, 1, 1), (2, 300, 3), (1, 1030, 1)), "ridges": ((1, 1, 1), (4, 9, 2), (1030, 5, 2), (7, 7, 5)),
    "unit_columns": ((1, 1, 1), (2, 3, 1), (1030, 3, 2)),
}  # fmt: skip
MANY = (
    *SMALL, (2, 1030, 1), (258, 1, 1), (3, 70, 2), (7, 64, 5), (300, 129, 3), (17, 2100, 4), (5, 5, 5), (1030, 3, 3),
)  # fmt: skip


def rand(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tensors(sizes: tuple[int, ...], seed: int) -> list[Tensor]:
    """Side by side; the last number is -0."""
    flat = offset(rand(sum(sizes), seed=seed), 1)
    flat[-1] = -0.0
    return [x[None] for x in flat.split(sizes)]


class Given:
    """Matrices of these sides, their factors and states; all of them begin at odd addresses."""

    def __init__(self, sides: tuple[tuple[int, int, int], ...], big: float = 1.0):
        places = [3]
        for m, _, r in sides:
            places.append(places[-1] + r * m + 1)
        self.factors = Factors(sides, places[:-1], CPU)
        self.message = offset(rand(places[-1], seed=1), 1)
        self.lefts, self.rights = (
            offset(rand(size[-1], seed=2), 1) for size in (self.factors.lefts, self.factors.rights)
        )
        self.rights[0] *= big
        self.matrices = TensorList([m * l for m, l, _ in sides], (), (), CPU)
        self.states = TensorList([l * r for _, l, r in sides], (), (), CPU)
        self.matrices.point(tensors(self.matrices.sizes, 3), None, tensors(self.matrices.sizes, 4))
        self.states.point(tensors(self.states.sizes, 5), None, tensors(self.states.sizes, 6))


def rows(sides: Any) -> list[Tensor]:
    given = Given(sides)
    project_rows_many(given.message, given.matrices, given.factors, given.rights)
    return [given.message]


def columns(sides: Any) -> list[Tensor]:
    given = Given(sides)
    project_columns_many(given.rights, given.matrices, given.factors, given.lefts)
    return [given.rights]


def bases(sides: Any) -> list[Tensor]:
    given = Given(sides)
    m, _, r = sides[1]
    basis = given.message[given.factors.places[1] :][: r * m].view(r, m)
    basis[:] = basis[0].clone()  # what completes it is made of what is rounded away
    orthonormalize_many(given.lefts, given.message, given.factors)
    return [given.lefts]


def units(sides: Any) -> list[Tensor]:
    given = Given(sides)
    given.states.xs[0].zero_()
    unit_rows_many(given.rights, given.states, given.factors)
    return [given.rights]


def ridges(sides: Any) -> list[Tensor]:
    given = Given(sides)
    narrow, (m, _, r) = offset(rand(len(given.lefts), seed=9), 1), sides[1]
    given.lefts[given.factors.lefts[1] :][: r * m] = 0.0
    solve_ridge_many(given.lefts, narrow, given.factors, 1e-3)
    return [given.lefts, narrow]


def unit_columns(sides: Any) -> list[Tensor]:
    given, out = Given(sides), list[Tensor]()
    sizes = [m * r for m, _, r in sides]
    columns, drawn = TensorList(sizes, (), (), CPU), TensorList(sizes, (), (), CPU)
    columns.point(tensors(columns.sizes, 7))
    drawn.point(tensors(drawn.sizes, 8))
    columns.xs[1].zero_()
    for fresh in (drawn, None):
        unit_columns_many(given.lefts, columns, given.factors, fresh, 1e-4)
        out.append(given.lefts.clone())
    return out


def split(sides: Any) -> list[Tensor]:
    given, out = Given(sides), list[Tensor]()
    for own in (given.lefts.new_ones(given.factors.rights[-1]), None):
        split_low_rank_many(given.lefts, given.matrices, given.factors, own, given.rights)
        assert given.matrices.rests is not None
        out += [x.clone() for x in (*given.matrices.xs, *given.matrices.rests)]
    return out


def fit(sides: Any) -> list[Tensor]:
    out = []
    for big, poison in ((1.0, False), (1e38, True), (math.inf, False), (math.nan, True)):
        given = Given(sides, big)
        with cpu_as_accelerator():  # the host would look closer
            out += [fit_many(given.rights, given.factors, given.lefts, given.matrices, poison), given.rights]
    return out


def succeed(sides: Any) -> list[Tensor]:
    given = Given(sides)
    succeed_many(torch.arange(len(sides)) % 2 == 0, given.states, given.factors, given.rights)
    return [*given.states.xs, *(given.states.rests or ())]


def add(sides: Any) -> list[Tensor]:
    given = Given(sides)
    add_low_rank_many(given.lefts, given.matrices, given.factors, given.rights, -1.0)
    return list(given.matrices.xs)


def turn(sides: Any) -> list[Tensor]:
    given, out = Given(sides), list[Tensor]()
    lefts = TensorList([m * r for m, _, r in sides], (), (), CPU)
    lefts.point(tensors(lefts.sizes, 7))
    for flat, columns, right in ((given.lefts, lefts, False), (given.rights, given.states, True)):
        scatter_rows_many(flat, columns, given.factors, right)
        out += [x.clone() for x in columns.xs]
        columns.point(tensors(columns.sizes, 8))
        gather_rows_many(flat, columns, given.factors, right)
        out.append(flat)
    return out


def draw(sides: Any) -> list[Tensor]:
    streams = [Stream(3, "m", str(t), None, 0) for t in range(len(sides))]
    drawn, out = TensorList([l * r for _, l, r in sides], (), streams, CPU), list[Tensor]()
    for step in (1, 1 << 40):
        drawn.point(tensors(drawn.sizes, 5))
        draw_many(drawn.xs[0], drawn, step)
        out += drawn.xs
    return out


OPERATIONS = {
    f.__name__: f for f in (draw, rows, columns, bases, units, unit_columns, ridges, split, fit, succeed, add, turn)
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_those_of_a_bucket(name: str) -> None:
    agree(lambda: OPERATIONS[name](FEW.get(name, SMALL)), name)


@night
def test_many_normal_numbers() -> None:
    agree(lambda: draw(((1, 200_001, 1), (1, 512, 1), (1, 1023, 1))), "normal")


@night
@pytest.mark.parametrize("name", OPERATIONS)
def test_those_of_a_bucket_of_more(name: str) -> None:
    agree(lambda: OPERATIONS[name](tuple(of for of in MANY if of[2] <= of[0])), name)
    if name in ("bases", "ridges", "unit_columns"):
        more = tuple((m, 1, r) for m, r in ((1024, 2), (1025, 1), (2048, 3), (4097, 2), (40, 33)))
        agree(lambda: OPERATIONS[name](more), name)


# ---- one matrix -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("m", "l", "r"), SMALL)
def test_products_with_one_matrix(m: int, l: int, r: int) -> None:
    x, p, q = offset(rand(m, l, seed=1), 1), rand(r, m, seed=2), rand(r, l, seed=3)
    agree(lambda: [kernels.project_rows(x, q), kernels.project_columns(x, p)], (m, l, r))


@night
@pytest.mark.parametrize(("m", "l", "r"), MANY)
def test_products_with_larger_matrices(m: int, l: int, r: int) -> None:
    test_products_with_one_matrix(m, l, r)


@night
def test_products_of_many_sizes() -> None:
    for n in (*range(1, 301, 13), 255, 256, 257, 513):
        for m, l in ((n, 2), (2, n)):
            test_products_with_one_matrix(m, l, 1)


def test_products_with_nothing() -> None:
    with backends.using("triton"):
        for m, l in ((0, 5), (5, 0)):
            assert torch.equal(kernels.project_rows(torch.ones(m, l), torch.ones(2, l)), torch.zeros(2, m))
            assert torch.equal(kernels.project_columns(torch.ones(m, l), torch.ones(2, m)), torch.zeros(2, l))


@pytest.mark.parametrize(
    "p",
    [rand(2, 9, seed=1) * 1e37, rand(2, 9, seed=1) * 1e-37, torch.zeros(2, 9), torch.full((3, 20), 1e-42),
     rand(1, 20, seed=1).expand(3, 20).contiguous(), torch.eye(20)[[4, 4, 7]], -torch.zeros(2, 8), rand(3, 3, seed=2)],
)  # fmt: skip
def test_one_basis(p: Tensor) -> None:
    agree(lambda: [kernels.orthonormalize(p)], p.shape)


@night
@pytest.mark.parametrize("r", [1, 2, 4])
def test_bases_of_many_sizes(r: int) -> None:
    for m in (*range(r, 301, 7), 1023, 1024, 1025, 2047, 2049, 4100):
        agree(lambda m=m: [kernels.orthonormalize(rand(r, m, seed=m))], (r, m))  # type: ignore[misc]


@pytest.mark.parametrize(
    "p",
    [rand(2, 9, seed=1) * 1e37, rand(2, 9, seed=1) * 1e-37, torch.zeros(2, 9), torch.ones(3, 20), torch.eye(20)[[4, 4, 7]],
     -torch.zeros(2, 8), rand(5, 5, seed=2), rand(7, 3, seed=3), rand(1, 1, seed=4), torch.ones(2, 0)],
)  # fmt: skip
def test_one_ridge(p: Tensor) -> None:
    for lam in (1e-9, 1e-3, 1e3):
        agree(lambda lam=lam: [kernels.solve_ridge(p, lam)], (p.shape, lam))  # type: ignore[misc]


@night
@pytest.mark.parametrize("r", [1, 2, 4])
def test_ridges_of_many_sizes(r: int) -> None:
    for m in (*range(r, 301, 7), 1023, 1024, 1025, 2047, 2049, 4100):
        agree(lambda m=m: [kernels.solve_ridge(rand(r, m, seed=m), 1e-3)], (r, m))  # type: ignore[misc]


def test_more_equations_than_a_program_takes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 4 numbers: what is longer goes through it in turn."""
    monkeypatch.setattr("grace.kernels.low_rank.triton.ridge.LOG", 2)
    for r, m in ((1, 5), (3, 3), (4, 4), (5, 9), (9, 17)):
        agree(lambda r=r, m=m: [kernels.solve_ridge(rand(r, m, seed=m), 1e-3)], (r, m))  # type: ignore[misc]
        agree(lambda r=r, m=m: ridges(((1, 2, 1), (2, 2, 2), (m, 3, r))), (r, m))  # type: ignore[misc]


def test_what_cannot_be_orthonormal_is_an_error() -> None:
    with backends.using("triton"), pytest.raises(InputError, match="7 rows of 4 numbers cannot be orthonormal"):
        kernels.orthonormalize(rand(7, 4, seed=1))


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _of_the_first(sides, task, COLUMN: tl.constexpr, MANY: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(sides + COLUMN) + task - task


@triton.jit
def _neighbors(total, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    for t in tl.static_range(0, LOG):
        low, high = tl.split(tl.reshape(total, (1 << (LOG - 1 - t), 2)))
        total = low + high
    return total


@triton.jit
def _as_they_are(a, j, r, m, tau, work, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    pass


@triton.jit
def _not_decomposed(gram, r, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    pass


@triton.jit
def _forth_alone(p, gram, x, m, r, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, 1 << LOG)
    for k in range(r):
        own = tl.load(p + k * m + i, i < m, 0.0).to(tl.float64)
        for j in range(k):
            own -= tl.load(gram + k * r + j) * tl.load(x + j * m + i, i < m, 0.0)
        tl.store(x + k * m + i, own / tl.load(gram + k * (r + 1)), i < m)


@triton.jit
def _unbounded(p, narrow, x, work, m, r, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    for first in range(0, r * m, 1 << LOG):
        i = first + tl.arange(0, 1 << LOG)
        tl.store(narrow + i, tl.load(x + i, i < r * m, 0.0).to(tl.float32), i < r * m)


@triton.jit
def _least(x, n, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.zeros((1,), tl.float32)


@triton.jit
def _in_single_precision(u, v, n, work, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, 1 << LOG)
    x = tl.load(u + lane, lane < n, 0.0).to(tl.float32) * tl.load(v + lane, lane < n, 0.0).to(tl.float32)
    return tl.sum(x, 0).to(tl.float64) + tl.zeros((1,), tl.float64)


@triton.jit
def _always(table, sides, programs, flags, right, EVEN: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    task, i = tl.load(programs), tl.arange(0, TILE)
    state = tl.load(table + task * 8 + 2).to(tl.pointer_type(tl.float32))
    n = tl.load(sides + 8 * task + 1) * tl.load(sides + 8 * task + 2)
    tl.store(state + i, tl.load(right + tl.load(sides + 8 * task + 4) + i, i < n), i < n)


@triton.jit
def _as_it_lies(  # type: ignore[no-untyped-def]
    table, sides, programs, flat, SIDE: tl.constexpr, GATHER: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr
):
    task, i = tl.load(programs + 2 * tl.program_id(0)).to(tl.int64), tl.arange(0, TILE)
    at = flat + tl.load(sides + 8 * task + 3 + SIDE) + i
    x = tl.load(table + task * 8).to(tl.pointer_type(tl.float32)) + i
    inside = i < tl.load(sides + 8 * task + SIDE) * tl.load(sides + 8 * task + 2)
    tl.store(at if GATHER else x, tl.load(x if GATHER else at, inside), inside)


@triton.jit
def _key_of_the_first(table, task):  # type: ignore[no-untyped-def]
    return key_of(table, 0)


@triton.jit
def _cosine_in_single_precision(turns, TURN: tl.constexpr, TERMS: tl.constexpr):  # type: ignore[no-untyped-def]
    angle = turns.to(tl.float32) * TURN
    return tl.cos(angle).to(tl.float64), tl.sin(angle).to(tl.float64)


MUTANTS: list[tuple[str, Any, Any, Any]] = [
    ("kernels.low_rank.grouped.triton.key_of", _key_of_the_first, draw, SMALL),
    ("random.triton._cosine_and_sine", _cosine_in_single_precision, draw, SMALL),
    ("kernels.low_rank.triton.begin_of", _of_the_first, rows, SMALL[:2]),
    ("kernels.low_rank.triton.begin_of", _of_the_first, columns, SMALL[:2]),
    ("kernels.low_rank.triton.begin_of", _of_the_first, split, SMALL[:2]),
    ("kernels.low_rank.triton.bases.fold", _neighbors, bases, FEW["bases"]),
    ("kernels.low_rank.triton.bases._reflect", _as_they_are, bases, SMALL),
    ("kernels.low_rank.triton.bases.dot_by_halves", _in_single_precision, units, FEW["units"]),
    ("kernels.low_rank.triton.ridge.dot_by_halves", _in_single_precision, ridges, SMALL),
    ("kernels.low_rank.triton.ridge._decompose", _not_decomposed, ridges, SMALL),
    ("kernels.low_rank.triton.ridge._substitute", _forth_alone, ridges, SMALL),
    ("kernels.low_rank.triton.ridge._bound", _unbounded, ridges, SMALL),
    ("kernels.low_rank.triton.ridge.largest_of", _least, unit_columns, SMALL),
    ("kernels.low_rank.triton.bases.mark_if", never, fit, SMALL[:2]),
    ("kernels.low_rank.grouped.triton.succeed_kernel", _always, succeed, SMALL),
    ("kernels.low_rank.triton.begin_of", _of_the_first, add, SMALL[:2]),
    ("kernels.low_rank.grouped.triton.turn_kernel", _as_it_lies, turn, SMALL),
]


@pytest.mark.parametrize(("name", "mutant", "operation", "sides"), MUTANTS)
def test_mutants_are_caught(
    name: str, mutant: Any, operation: Any, sides: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"grace.{name}", mutant)
    with pytest.raises(AssertionError):
        agree(lambda: operation(sides), name)
