"""Reduce-scatters of several tensors on an accelerator, by few launches: bytes, means and memories of one after the other.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

from grace.communicators import base
from grace.communicators.many import agree
from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.registry.policy import Policy
from tests.laws import bucket_runs
from tests.laws.bucket_runs import RowRun, Shapes, gradients
from tests.laws.launches import read_rows
from tests.laws.test_many import count_launches
from tests.laws.test_rows import MORE, SCATTERED
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

ROWS: Shapes = ((2, 3), (2, 41), (2, 8))
GATE = ("efsignsgd:block=32", "qsgd:bits=4,bucket=32,memory=residual", "signsgd")
NIGHT = tuple(spec for spec in (*SCATTERED, *MORE) if spec not in GATE)


class PartsOfRows(RowRun):
    """Rows that are parts of those of one matrix, as torch leaves a group's gradients."""

    def _give(self, rank: int, step: int) -> dict[str, Tensor]:
        given = super()._give(rank, step)
        parts = torch.cat([torch.zeros(2, 1, dtype=self.dtype), *given.values()], dim=1)[:, 1:]
        return dict(zip(given, parts.split([x.shape[1] for x in given.values()], dim=1), strict=True))


def outcome(
    spec: str, together: bool, steps: int = 3, kind: type[RowRun] = RowRun, dtype: torch.dtype = torch.float32
) -> Any:
    """Bytes, means and states of some steps; the third is not finite."""
    with backends.using("triton"), cpu_as_accelerator():
        run = kind(Policy([("*", spec)]), 2, ROWS, lambda _: together, dtype)
        return [run.step() for _ in range(steps)], run.seen


@pytest.mark.parametrize("spec", [*GATE, *(pytest.param(spec, marks=night) for spec in NIGHT)])
def test_rows_have_the_bytes_of_single_tensors(spec: str) -> None:
    assert outcome(spec, True) == outcome(spec, False)


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (GATE[0], torch.bfloat16),
        ("natural", torch.float32),
        pytest.param(GATE[1], torch.float32, marks=night),
        pytest.param("topk:ratio=0.2,memory=none", torch.bfloat16, marks=night),
        pytest.param("drive:block=16", torch.bfloat16, marks=night),
        pytest.param("onebit", torch.float32, marks=night),
    ],
)
def test_parts_of_rows_are_read_where_they_are(spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    right = outcome(spec, False, kind=PartsOfRows, dtype=dtype)
    prepare, seen = base.prepare_rows, set[bool]()

    def look(*args: Any) -> Any:
        bucket, rows = prepare(*args), args[2]
        read = bucket.tables.rows
        own = [x[row].data_ptr() - row * x.shape[1] * x.element_size() for x in rows for row in range(2)]
        seen.add(not rows[0].is_contiguous() and read.table[:, 0].tolist() == own)
        return bucket

    monkeypatch.setattr(base, "prepare_rows", look)
    assert outcome(spec, True, kind=PartsOfRows, dtype=dtype) == right
    assert seen == {True}


def large(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
    """Gradients that are infinite in 16 bits, in the row of the second rank of the second tensor."""
    given = gradients(rank, 0, shapes)
    given["layer1"][1, 7] = 3.4e38
    return given


def test_a_mean_that_overflows_on_one_rank_is_none_on_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_runs, "gradients", large)
    right = outcome("bf16", False, 1)
    assert outcome("bf16", True, 1) == right
    monkeypatch.setattr("grace.communicators.rows.poison_many", _nothing)
    assert outcome("bf16", True, 1) != right


@pytest.mark.parametrize(("spec", "launches"), read_rows())
def test_launches_of_rows(spec: str, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [count_launches(spec, ((2, 3),) * T, monkeypatch, world=2, scatters=True) for T in (1, 3)]
    assert counts == [launches] * 2


def test_rows_that_go_one_by_one_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, launches = read_rows()[0]
    monkeypatch.setattr("grace.communicators.base.prepare_rows", lambda *_: None)
    with pytest.raises(AssertionError):
        test_launches_of_rows(spec, launches, monkeypatch)


# ---- mutants --------------------------------------------------------------------------------------------------------
def _nothing(*_: Any, **__: Any) -> None:
    """Nothing is done."""


def _all_agree(*args: Any, **how: Any) -> Tensor:
    """All ranks have seen finite numbers."""
    return torch.ones_like(agree(*args, **how))


@pytest.mark.parametrize(
    ("where", "mutant"),
    [("grace.communicators.rows.agree", _all_agree), ("grace.memories.many.settle_many", _nothing)],
)
def test_mutants_of_rows_are_caught(where: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = outcome(GATE[0], False)
    monkeypatch.setattr(where, mutant)
    assert outcome(GATE[0], True) != right
