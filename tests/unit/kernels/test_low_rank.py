"""Thin factors: what the operations compute, and that all backends and numbers of threads give the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from grace.compute import backends
from grace.errors import InputError
from grace.kernels import (
    add_low_rank_,
    orthonormalize,
    project_columns,
    project_rows,
    solve_ridge,
    split_low_rank,
)
from tests.unit.kernels.native_checks import TARGETS, needs_native, offset, same_bits, with_threads

BACKENDS = ["reference", *TARGETS]
# m, l, r: shorter and longer than a vector, than what is summed at once, than a task; more ranks than are taken at a time
SIZES = [
    (1, 1, 1), (3, 70, 2), (40, 1300, 4), (7, 64, 1), (513, 130, 5), (600, 1, 1), (17, 2100, 3), (300, 37, 11), (2, 5, 2),
    (1030, 33, 4), (64, 576, 8), (9, 1025, 7), (900, 700, 2),
]  # fmt: skip


def rand(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_one_result(compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The same bits from every backend, on one thread and on three."""
    results = {}
    for backend in BACKENDS:
        for threads in (1, 3):
            with backends.using(backend), with_threads(threads):
                results[backend, threads] = compute()
    first = results["reference", 1]
    for where, result in results.items():
        for a, b in zip(first, result, strict=True):
            assert same_bits(a, b), f"{where} differs from the reference"
    return first


@pytest.mark.parametrize(("m", "l", "r"), SIZES)
def test_projections_of_rows_and_columns(m: int, l: int, r: int) -> None:
    x, p, q = offset(rand(m, l, seed=1), 1), offset(rand(r, m, seed=2), 2), offset(rand(r, l, seed=3), 3)
    left, right = assert_one_result(lambda: (project_rows(x, q), project_columns(x, p)))
    torch.testing.assert_close(left.double(), q.double() @ x.double().mT, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(right.double(), p.double() @ x.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("m", "l"), [(0, 5), (5, 0)])
def test_projections_of_nothing(m: int, l: int) -> None:
    x, p, q = torch.ones(m, l), torch.ones(2, m), torch.ones(2, l)
    left, right = assert_one_result(lambda: (project_rows(x, q), project_columns(x, p)))
    assert torch.equal(left, torch.zeros(2, m))
    assert torch.equal(right, torch.zeros(2, l))


@pytest.mark.parametrize(("m", "l", "r"), SIZES)
def test_what_a_product_says_and_what_it_does_not(m: int, l: int, r: int) -> None:
    x, p, left_factor, q = rand(m, l, seed=1), rand(r, m, seed=2), rand(r, l, seed=3), rand(r, l, seed=4)

    def compute() -> tuple[Tensor, ...]:
        left, out, only, sum_ = offset(x, 3), offset(torch.full_like(x, math.nan), 1), torch.empty_like(x), x.clone()
        split_low_rank(left, p, left_factor, q, out)
        split_low_rank(None, p, left_factor, q, only)
        add_low_rank_(sum_, p, q, 0.3)
        return left, out, only, sum_

    left, out, only, sum_ = assert_one_result(compute)
    wide = [t.double() for t in (x, p, left_factor, q)]
    torch.testing.assert_close(left.double(), wide[0] - wide[1].mT @ wide[2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.double(), wide[1].mT @ wide[3], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sum_.double(), wide[0] + 0.3 * (wide[1].mT @ wide[3]), rtol=1e-5, atol=1e-5)
    assert same_bits(out, only)


@pytest.mark.parametrize(
    "p",
    [rand(3, 20, seed=1), rand(3, 20, seed=1) * 1e37, rand(3, 20, seed=1) * 1e-37, torch.zeros(3, 20),
     rand(1, 20, seed=1).expand(3, 20).contiguous(), torch.eye(20)[[4, 4, 7]], rand(3, 3, seed=2),
     torch.full((3, 20), 1e-42), rand(1, 1, seed=1), rand(4, 4097, seed=5), rand(64, 300, seed=6),
     torch.cat([rand(2, 1000, seed=7)] * 2), rand(3, 500, seed=8) * torch.logspace(0, -30, 500)],
)  # fmt: skip
def test_orthonormalize(p: Tensor) -> None:
    r = len(p)
    (basis,) = assert_one_result(lambda: (orthonormalize(p),))
    wide = basis.double()
    torch.testing.assert_close(wide @ wide.mT, torch.eye(r, dtype=torch.float64), rtol=0, atol=1e-6)
    unit = p.double() / p.double().abs().amax(dim=1, keepdim=True).clamp_min(1e-300)
    torch.testing.assert_close((unit @ wide.mT) @ wide, unit, rtol=0, atol=1e-5)


def test_a_basis_is_that_of_lapack() -> None:
    p = rand(5, 40, seed=1)
    torch.testing.assert_close(orthonormalize(p).mT, torch.linalg.qr(p.mT).Q, rtol=0, atol=1e-5)


@needs_native
def test_orthonormalize_in_several_threads() -> None:
    """Large enough for them."""
    p = rand(24, 40_000, seed=1)
    results = []
    for threads in (1, 3):
        with with_threads(threads):
            results.append((orthonormalize(p), solve_ridge(p, 0.1)))
    assert all(same_bits(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("r", "m"), [(3, 20), (1, 1), (5, 4100), (33, 70)])
def test_solve_ridge_is_its_formula(r: int, m: int) -> None:
    p = rand(r, m, seed=1)
    wide = p.double()
    gram = wide @ wide.mT
    expected = torch.linalg.inv(gram + 0.1 * gram.trace() / r * torch.eye(r, dtype=torch.float64)) @ wide
    (solved,) = assert_one_result(lambda: (solve_ridge(p, 0.1),))
    torch.testing.assert_close(solved, expected, rtol=1e-8, atol=1e-10)


def test_solve_ridge_of_many_sizes() -> None:
    """Ridges of many sizes; torch's own square roots of some numbers on the CPU are those beside the nearest."""
    for r in (1, 2, 4):
        for m in range(r, 181):
            p = rand(r, m, seed=m)
            assert_one_result(lambda p=p: (solve_ridge(p, 1e-3),))  # type: ignore[misc]


@pytest.mark.parametrize("p", [torch.zeros(2, 5), torch.ones(2, 5), torch.eye(5)[[1, 1]] * 1e-30])
def test_solve_ridge_of_what_has_no_inverse(p: Tensor) -> None:
    (solved,) = assert_one_result(lambda: (solve_ridge(p, 1e-9),))
    assert bool(solved.isfinite().all())
    assert bool(solved.any()) == bool(p.any())


@needs_native
def test_what_does_not_fit_is_an_error() -> None:
    x, p, q = rand(4, 6, seed=1), rand(2, 4, seed=2), rand(2, 6, seed=3)
    with pytest.raises(InputError, match="own"):
        split_low_rank(x, p, rand(2, 5, seed=1), q, torch.empty(4, 6))
    with pytest.raises(InputError, match="out"):
        split_low_rank(x, p, q, q, torch.empty(6, 4))
    with pytest.raises(InputError, match="not contiguous"):
        split_low_rank(rand(6, 4, seed=1).mT, p, q, q, torch.empty(4, 6))
    with pytest.raises(InputError, match=r"q must be contiguous float32 \[2, 6\]"):
        project_rows(x, rand(2, 5, seed=1))
    with pytest.raises(InputError, match="p must be"):
        project_columns(x, p.double())
    with pytest.raises(InputError, match="q must be"):
        add_low_rank_(x, p, rand(3, 6, seed=1), 1.0)
    with pytest.raises(InputError, match="7 rows of 4 numbers cannot be orthonormal"):
        orthonormalize(rand(7, 4, seed=1))
