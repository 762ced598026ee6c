"""Reduce-scatters of several tensors as one: bytes, means and states of one tensor after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import grace
from grace.communicators.bucket import BucketPlan
from grace.communicators.rows import RowTables
from grace.errors import GraceError
from grace.methods.qsgd import QSGD
from grace.registry.policy import Policy
from tests.laws.bucket_runs import ALL, SOME, RowRun, Shapes, assert_same
from tests.laws.test_bucket_methods import averages_of_what_is_not_finite, calls_of
from tests.unit.kernels.native_checks import needs_native

W = 3
ROWS: Shapes = ((W, 5), (W, 41), (W, 1), (W, 64))
SCATTERED = [name for name in grace.methods() if grace.method(name).has_scatter]
MORE = (
    "qsgd:bits=4,bucket=32,memory=residual", "fp8:block=32", "fp8:fmt=e5m2,memory=residual", "efsignsgd:memory=distef",
    "topk:memory=dgc", "natural:memory=momentum", "topk:ratio=0.2,communicator=allgather,follow_lr=true",
    "none:communicator=allgather", "qsgd:bits=8,memory=ef21",
)  # fmt: skip


@pytest.mark.parametrize("spec", [*SCATTERED, *MORE])
def test_rows_have_the_bytes_of_single_tensors(spec: str) -> None:
    policy = Policy([("layer1", "none"), ("*", spec)])
    assert_same(policy, W, ROWS, plans=SOME, kind=RowRun)


# ---- by native calls --------------------------------------------------------------------------------------------------
BOUND = "qsgd:bits=4,bucket=32,memory=residual"


@needs_native
@pytest.mark.parametrize("spec", ["efsignsgd:block=32", BOUND, "signsgd", "drive:block=16,rotation=shared"])
def test_rows_go_by_one_call(spec: str) -> None:
    run = RowRun(Policy([("*", spec)]), W, ROWS, ALL)
    run.step()
    (tables,) = (tables for tables in run.workers[0].workspace.kept.values() if isinstance(tables, RowTables))
    assert calls_of(tables.rows) == {"_Encoders"}
    assert calls_of(tables.averages) == {"_Decoders"}


def sums_for_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    right = QSGD.aggregate_many_
    monkeypatch.setattr(QSGD, "aggregate_many_", lambda self, rows, many, scale, rng: right(self, rows, many, 1.0, rng))


def padding_is_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketPlan, "clear_padding", lambda self, messages: messages.fill_(7))


@needs_native
@pytest.mark.parametrize(
    "mutant", [averages_of_what_is_not_finite, sums_for_averages, padding_is_anything], ids=lambda m: m.__name__
)
def test_each_mutant_of_rows_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, RuntimeError, GraceError)):
        assert_same(Policy([("*", BOUND)]), W, ROWS, kind=RowRun)
