"""Low-rank methods of a bucket on an accelerator, in steps in which some matrices are not finite: the bytes, means and states
of the CPU, and no plan that is kept for each set of matrices.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.methods.common.projection_bucket import ProjectionPlan
from grace.registry.policy import Policy
from tests.laws import bucket_runs
from tests.laws.bucket_runs import Run, Shapes, gradients, in_bytes
from tests.laws.test_factors import ALTERNATING, ONE_RIDGE, RIDGES, outcome
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (RIDGES, torch.float32),
        (f"{RIDGES},memory=none", torch.bfloat16),
        pytest.param(ONE_RIDGE, torch.float32, marks=night),
        *(
            pytest.param(f"{RIDGES},memory={memory}", dtype, marks=night)
            for memory, dtype in (("none", torch.float32), ("distef", torch.bfloat16), ("momentum", torch.float16))
        ),
    ],
)
def test_steps_with_some(spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    check_steps_with_some(spec, dtype, monkeypatch)


def check_steps_with_some(
    spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, spoiled: str | None = None
) -> None:
    """Steps in which all matrices of a rank are not finite, or one of them: of both factors. ``spoiled``: the operation that
    does nothing on the accelerator.
    """
    seen = {0: ("layer0", "layer2"), 1: ("layer0",), 2: ("layer2",)}

    def with_some(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
        given = {name: x.clone() for name, x in gradients(rank, 0, shapes).items()}
        for name in seen.get(step, ()):
            given[name][0, 1] = torch.inf if rank == 0 else 1.0
        if step == 3:
            given["layer0"].zero_()  # of which nothing is learnt
        return given

    monkeypatch.setattr(bucket_runs, "gradients", with_some)
    shapes: Shapes = ((2, 3), (2,), (3, 2))
    want = outcome.__wrapped__(spec, "reference", False, shapes, 2, 5, dtype)
    if spoiled is not None:
        monkeypatch.setattr(spoiled, lambda *_: None)
    assert outcome.__wrapped__(spec, "triton", True, shapes, 2, 5, dtype) == want


def with_many_subsets(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
    """In each step others of the matrices are not finite."""
    given = gradients(rank, 0, shapes)
    for i, x in enumerate(given.values()):
        if step >> i & 1:
            x[0, 1] = torch.inf
    return given


@pytest.mark.parametrize(("spec", "most"), [(RIDGES, 2), (ONE_RIDGE, 4), pytest.param(ALTERNATING, 4, marks=night)])
def test_plans_for_some_of_the_matrices_are_not_kept_for_ever(
    spec: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, start, counts = weakref.WeakSet[ProjectionPlan](), ProjectionPlan.__init__, list[int]()

    def note(plan: ProjectionPlan, *args: Any, **how: Any) -> None:
        plans.add(plan)
        start(plan, *args, **how)

    monkeypatch.setattr(bucket_runs, "gradients", with_many_subsets)
    monkeypatch.setattr(ProjectionPlan, "__init__", note)
    shapes: Shapes = ((2, 2),) * 3
    want, _ = outcome.__wrapped__(spec, "reference", False, shapes, 1, 7)
    with backends.using("triton"), cpu_as_accelerator():
        run = Run(Policy([("*", spec)]), 1, shapes, lambda _: True)
        for step in range(7):
            assert run.step() == want[step]
            gc.collect()
            counts.append(len(plans))
    assert max(counts) == most, counts


def test_first_factors_that_are_not_cleared_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        check_steps_with_some(RIDGES, torch.float32, monkeypatch, "grace.methods.common.ridge_bucket.clear_many")


def beyond_float16(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
    """Finite in float16, but the nearest matrix of rank 1 to the first one is not."""
    given = gradients(rank, 0, shapes)
    first = next(iter(given.values()))
    first.fill_(6e4)[-1, -1] = 0.0
    return given


def test_means_that_overflow_when_they_are_narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are NaN throughout; the other matrices of the bucket have means."""
    monkeypatch.setattr(bucket_runs, "gradients", beyond_float16)
    spec, shapes = f"{RIDGES},memory=none", ((2, 2), (2, 3), (3, 2))
    want = outcome.__wrapped__(spec, "reference", False, shapes, 2, 2, torch.float16)
    means = want[0][0][0][0]
    assert means["layer0"] == in_bytes(torch.full((2, 2), torch.nan, dtype=torch.float16))
    assert means["layer1"] != in_bytes(torch.full((2, 3), torch.nan, dtype=torch.float16))
    assert outcome.__wrapped__(spec, "triton", True, shapes, 2, 2, torch.float16) == want


@night
def test_means_that_are_not_poisoned_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, spoiled = f"{RIDGES},memory=none", "grace.methods.common.projection_bucket.poison_many"
    with pytest.raises(AssertionError):
        check_steps_with_some(spec, torch.float32, monkeypatch, spoiled)


def test_narrow_means_that_are_not_poisoned_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, what overflows is inf among numbers; a mean that is NaN before it is narrowed would show nothing."""
    monkeypatch.setattr("grace.methods.common.low_rank_bucket.poison_many", lambda *_: None)
    with pytest.raises(AssertionError):
        test_means_that_overflow_when_they_are_narrowed(monkeypatch)
