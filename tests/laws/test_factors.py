"""Low-rank methods of a bucket on an accelerator: the bytes, means and states of the reference, one
tensor after the other.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.errors import ConfigurationError
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import cpu_as_accelerator
from grace.kernels.low_rank.grouped import Factors
from grace.kernels.multi_tensor import narrow_many
from grace.kernels.tensor_list import TensorList
from grace.memories import error_feedback
from grace.methods import powersgd
from grace.methods.common import low_rank_bucket
from grace.methods.common.factor_bucket import FactorPlan
from grace.registry.policy import Policy
from tests.laws import bucket_runs
from tests.laws.bucket_runs import SOME, Run, Shapes, assert_same, gradients, in_bytes
from tests.laws.test_many import count_launches
from tests.unit.kernels.triton_checks import CAUGHT, interpreter, night

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
SMALL: Shapes = ((2, 3), (2,), (3, 2), (2, 2))
MATRICES: Shapes = ((6, 9), (3,), (8, 8), (6, 9), (5,), (17, 9), (4, 3, 5), (2, 1030), (260, 2), (7,))
AT_NIGHT = (
    "powersgd:memory=residual", "powersgd:memory=none", "powersgd:warm_start=false", "powersgd:start_step=2",
    "acpsgd:memory=residual", "acpsgd:memory=none", "gradzip:memory=residual", "gradzip:memory=none",
    "gradzip:alternate=true,memory=residual", "gradzip:alternate=true,memory=none",
)  # fmt: skip
LOW_RANK, ALTERNATING = "powersgd:rank=1,min_rate=0.1", "acpsgd:rank=1,min_rate=0.1"
DRAWN = f"{LOW_RANK},warm_start=false"
RIDGES = "gradzip:rank=1,min_rate=0.1"
ONE_RIDGE = f"{RIDGES},alternate=true"
SLICED = "gradiveq:length=4,dims=1,collect=2,use=3"
SLICES: Shapes = ((5,), (2,), (3, 3), (6,), (2, 2))  # two of them go on behind their slices, and one has none


@functools.cache
def outcome(
    spec: str,
    backend: str,
    together: bool,
    shapes: Shapes,
    world: int,
    steps: int = 3,
    dtype: torch.dtype = torch.float32,
) -> tuple[Any, Any]:
    """Means and states of these steps, and what the network was given."""
    with backends.using(backend), cpu_as_accelerator():
        run = Run(Policy([("*", spec)]), world, shapes, lambda _: together, dtype)
        return [run.step() for _ in range(steps)], run.seen


def with_nan(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
    """In the second step a NaN in a matrix of one rank, and denormals."""
    given = gradients(rank, step, shapes)
    if (rank, step) == (0, 1):
        given["layer2"][1, 0] = torch.nan
    return given


@pytest.fixture
def nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_runs, "gradients", with_nan)


@pytest.mark.parametrize(
    ("spec", "steps", "dtype"),
    [
        (LOW_RANK, 2, torch.float32),
        (DRAWN, 2, torch.float32),
        (ALTERNATING, 3, torch.bfloat16),
        (RIDGES, 4, torch.float32),
        (ONE_RIDGE, 3, torch.bfloat16),
        pytest.param(ALTERNATING, 3, torch.float32, marks=night),
        pytest.param(RIDGES, 4, torch.bfloat16, marks=night),
        pytest.param(ONE_RIDGE, 5, torch.float32, marks=night),
        pytest.param(f"{RIDGES},memory=none", 4, torch.float32, marks=night),
        pytest.param(f"{ONE_RIDGE},memory=none", 5, torch.float32, marks=night),
        pytest.param(LOW_RANK, 2, torch.bfloat16, marks=night),
        (SLICED, 3, torch.float32),
        pytest.param(SLICED, 4, torch.bfloat16, marks=night),
        pytest.param(f"{SLICED},memory=none", 4, torch.float32, marks=night),
    ],
)
def test_a_bucket_has_the_bytes_of_the_cpu(spec: str, steps: int, dtype: torch.dtype, nan: None) -> None:
    """The third step of ``acpsgd`` and of ``gradzip`` with ``alternate`` has matrices of both kinds: one of them has not taken
    its turn. So it is with ``gradiveq``, of which one tensor still collects.
    """
    want = outcome(spec, "reference", False, shapes_of(spec), 2, steps, dtype)
    assert outcome(spec, "triton", True, shapes_of(spec), 2, steps, dtype) == want


def shapes_of(spec: str) -> Shapes:
    return SLICES if spec.startswith(SLICED) else SMALL


@night
@pytest.mark.parametrize("memory", ["residual", "none"])
def test_slices_of_all_kinds(memory: str) -> None:
    """Also slices of more numbers than a program adds up at once, and ranks that do not make buckets."""
    spec = f"gradiveq:length=8,dims=2,collect=1,use=3,memory={memory}"
    shapes: Shapes = ((70, 3), (41,), (5, 3, 70), (3,), (64,))
    want = outcome(spec, "reference", False, shapes, 3, 5)
    assert outcome(spec, "triton", True, shapes, 3, 5) == want
    with backends.using("triton"), cpu_as_accelerator():
        assert_same(Policy([("layer1", "none"), ("*", spec)]), 3, shapes, plans=SOME)


@night
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", [LOW_RANK, ALTERNATING, RIDGES, ONE_RIDGE])
def test_narrow_gradients_are_read_as_they_are(spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what their means lose is owed."""
    want = outcome.__wrapped__(spec, "reference", False, SMALL, 2, 3, dtype)
    right, seen = error_feedback.narrow_many_, list[int]()
    monkeypatch.setattr(
        error_feedback, "narrow_many_", lambda outs, *args: (seen.append(len(outs)), right(outs, *args))
    )
    assert outcome.__wrapped__(spec, "triton", True, SMALL, 2, 3, dtype) == want
    assert seen == [len(SMALL)] * 6, "of two ranks, three steps"
    monkeypatch.setattr(error_feedback, "narrow_many_", lambda outs, *args: right(outs, *args[:-1], None))
    assert outcome.__wrapped__(spec, "triton", True, SMALL, 2, 3, dtype) == want, "one after the other"
    with backends.using("triton"), cpu_as_accelerator():
        assert_same(Policy([("layer1", "none"), ("*", spec)]), 3, SMALL, plans=SOME, dtype=dtype)


def beyond_float16(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
    """In the second step a matrix whose mean is finite, but not in float16."""
    given = gradients(rank, step, shapes)
    if step == 1:
        given["layer3"].copy_(torch.tensor([[6e4, 6e4], [6e4, 0.0]]))
    return given


@pytest.mark.parametrize(
    ("method", "memory", "dtype"),
    [
        (LOW_RANK, "none", torch.float16),
        *(
            pytest.param(method, memory, dtype, marks=night)
            for method in (LOW_RANK, ALTERNATING, RIDGES, ONE_RIDGE)
            for memory in ("none", "momentum")
            for dtype in (torch.bfloat16, torch.float16)
        ),
    ],
)
def test_narrow_gradients_without_a_memory(
    method: str, memory: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices are worked on in float32, together; others travel as they are. The state follows only where the mean fits."""
    monkeypatch.setattr(bucket_runs, "gradients", beyond_float16)
    spec, steps = f"{method},memory={memory}", 2
    want = outcome.__wrapped__(spec, "reference", False, SMALL, 2, steps, dtype)
    right, seen = low_rank_bucket.sum_many, list[int]()
    monkeypatch.setattr(low_rank_bucket, "sum_many", lambda like, many: (seen.append(len(many)), right(like, many)))
    assert outcome.__wrapped__(spec, "triton", True, SMALL, 2, steps, dtype) == want
    if memory == "none":
        assert seen == [3] * 4, "of two ranks, two steps"
    if (method, memory, dtype) == (LOW_RANK, "none", torch.float16):  # the only one whose mean is too large
        monkeypatch.setattr(low_rank_bucket, "narrow_many", _unnoticed)
        assert outcome.__wrapped__(spec, "triton", True, SMALL, 2, steps, dtype) != want


def _unnoticed(flags: Tensor, means: TensorList, many: TensorList) -> Tensor:
    """Nobody asks whether a mean fits into what it becomes."""
    narrow_many(flags, means, many)
    return flags


@night
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", [LOW_RANK, ALTERNATING, f"{LOW_RANK},start_step=2", RIDGES, ONE_RIDGE])
def test_narrow_gradients_of_others_between_them(spec: str, dtype: torch.dtype) -> None:
    with backends.using("triton"), cpu_as_accelerator():
        assert_same(
            Policy([("layer1", "none"), ("*", f"{spec},memory=none")]), 3, (*SMALL, (4,)), plans=SOME, dtype=dtype
        )


@night
@pytest.mark.parametrize("spec", AT_NIGHT)
def test_buckets_of_all_kinds(spec: str) -> None:
    spec = f"{spec},rank=2,min_rate=0.1"
    want = outcome(spec, "reference", False, MATRICES, 2)
    assert outcome(spec, "triton", True, MATRICES, 2) == want
    assert outcome(spec, "triton", False, MATRICES, 2) == want


@night
@pytest.mark.parametrize("spec", AT_NIGHT)
def test_others_may_stand_between_them_and_ranks_need_not_choose_alike(spec: str) -> None:
    policy = Policy([("layer[15]", "none"), ("*", f"{spec},rank=1,min_rate=0.1")])
    with backends.using("triton"), cpu_as_accelerator():
        assert_same(policy, 3, SMALL, plans=SOME)
        assert_same(policy, 2, ((3, 4), (2, 3), (2, 2)))


def huge(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
    """Some of the time a factor or a mean overflows."""
    given = gradients(rank, step, shapes)
    for i, x in enumerate(given.values()):
        if (i + step) % 2:
            x.mul_(1e38)
        elif (i, step) == (2, 2):
            x.fill_(3.4e38)
    return given


@night
@pytest.mark.parametrize("memory", ["residual", "none"])
@pytest.mark.parametrize("method", [LOW_RANK, ALTERNATING, RIDGES, ONE_RIDGE])
def test_products_that_overflow(method: str, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_runs, "gradients", huge)
    spec = f"{method},memory={memory}"
    want = outcome.__wrapped__(spec, "reference", False, SMALL, 2, 5)
    assert outcome.__wrapped__(spec, "triton", True, SMALL, 2, 5) == want


def test_what_does_not_fit_is_no_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean that is only likely to overflow is NaN throughout, and the states stay as they were."""
    with backends.using("triton"), cpu_as_accelerator():
        run = Run(Policy([("*", LOW_RANK)]), 1, ((2, 2), (1,)), lambda _: True)
        run.step()
        before = in_bytes(run.workers[0].state_dict()["states"]["layer0"])
        monkeypatch.setattr(powersgd, "fit_many", lambda *_, **__: torch.zeros(1, dtype=torch.bool))
        means, _, _ = run.step()
        assert in_bytes(run.workers[0].state_dict()["states"]["layer0"]) == before
    mean = torch.frombuffer(bytearray(means[0]["layer0"][2]), dtype=torch.float32)
    assert bool(mean.isnan().all())
    assert means[0]["layer1"] == in_bytes(gradients(0, 1, run.shapes)["layer1"])


@night
def test_while_work_is_captured_tensors_are_not_looked_for() -> None:
    """A bucket whose tensors have not been seen where they are now goes one by one."""
    shapes: Shapes = ((2, 3), (2, 2))
    with backends.using("triton"), cpu_as_accelerator():
        run, other = (Run(Policy([("*", LOW_RANK)]), 1, shapes, lambda _, yes=yes: yes) for yes in (True, False))
        assert run.step() == other.step()
        run.workers[0].workspace.kept.clear()
        with pretend_capturing():
            assert run.step() == other.step()
        assert not any(isinstance(key, tuple) and key[0] is FactorPlan for key in run.workers[0].workspace.kept)


@night
def test_what_asks_the_host_is_refused_while_work_is_captured() -> None:
    for spec in (ALTERNATING, RIDGES, ONE_RIDGE):
        with backends.using("triton"), cpu_as_accelerator():
            run = Run(Policy([("*", spec)]), 1, ((2, 3), (2, 2)), lambda _: True)
            run.step()
            with pretend_capturing(), pytest.raises(ConfigurationError, match="whether this step was finite"):
                run.step()


@pytest.mark.parametrize("shape", [(3, 2), (3,)])
@pytest.mark.parametrize("spec", [RIDGES, pytest.param(ONE_RIDGE, marks=night), pytest.param(ALTERNATING, marks=night)])
def test_a_bucket_of_one(spec: str, shape: tuple[int, ...]) -> None:
    """It has the bytes that it has alone."""
    want = outcome(spec, "reference", False, (shape,), 2, 2)
    assert outcome(spec, "triton", True, (shape,), 2, 2) == want


@pytest.mark.parametrize(
    ("spec", "shapes", "dtype", "launches"),
    [
        (LOW_RANK, ((3, 5),), torch.float32, 13),
        (LOW_RANK, ((3, 5),), torch.bfloat16, 15),
        (f"{LOW_RANK},memory=none", ((3, 5), (4,)), torch.float16, 13),
    ],
    ids=str,
)
def test_nothing_is_copied_to_the_device(
    spec: str, shapes: Shapes, dtype: torch.dtype, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing from there, once memories and states have gone round."""
    counts = [count_launches(spec, shapes * T, monkeypatch, dtype) for T in (2, 12)]
    assert counts == [launches, launches]


# ---- mutants --------------------------------------------------------------------------------------------------------
def _nothing(*_: Any, **__: Any) -> None:
    pass


def _own_as_the_mean(
    lefts: Tensor, matrices: TensorList, factors: Factors, owns: Tensor | None, rights: Tensor
) -> None:
    split(lefts, matrices, factors, owns, rights if owns is None else owns)


def _never_new(flags: Tensor, states: TensorList, factors: Factors, rights: Tensor) -> None:
    succeed(torch.zeros_like(flags), states, factors, rights)


def _of_the_states(rights: Tensor, states: TensorList, factors: Factors) -> None:
    for x, right in zip(states.xs, factors.cut(rights, factors.rights), strict=True):
        right.copy_(x[0])


def _as_they_are(lefts: Tensor, columns: TensorList, factors: Factors, *_: Any) -> None:
    for x, left in zip(columns.xs, factors.cut(lefts, factors.lefts), strict=True):
        left.copy_(x[0])


def _none(flags: Tensor, many: TensorList) -> Tensor:
    return torch.zeros_like(flags)


def _all(flags: Tensor, many: TensorList) -> Tensor:
    return torch.ones_like(flags)


split, succeed = powersgd.split_low_rank_many, powersgd.succeed_many


@pytest.mark.parametrize(
    ("name", "mutant", "spec"),
    [
        pytest.param("powersgd.clear_many", _nothing, LOW_RANK, marks=night),
        ("powersgd.split_low_rank_many", _own_as_the_mean, LOW_RANK),
        pytest.param("powersgd.succeed_many", _never_new, LOW_RANK, marks=night),
        pytest.param("powersgd.unit_rows_many", _of_the_states, LOW_RANK, marks=night),
        pytest.param("powersgd.draw_many", _nothing, DRAWN, marks=night),
        ("common.projection_bucket.add_low_rank_many", _nothing, ALTERNATING),
        pytest.param("common.projection_bucket.finite_many", _all, ALTERNATING, marks=night),
        pytest.param("common.projection_bucket.orthonormalize_many", _nothing, ALTERNATING, marks=night),
        pytest.param("common.projection_bucket.scatter_rows_many", _nothing, ALTERNATING, marks=night),
        ("common.ridge_bucket.draw_many", _nothing, RIDGES),
        pytest.param("common.ridge_bucket.unit_columns_many", _as_they_are, RIDGES, marks=night),
        ("common.ridge_bucket.solve_ridge_many", _nothing, RIDGES),
        pytest.param("common.ridge_bucket.finite_many", _all, RIDGES, marks=night),
        ("common.ridge_bucket.nonzero_many", _none, ONE_RIDGE),
        pytest.param("common.ridge_bucket.succeed_many", _never_new, ONE_RIDGE, marks=night),
        ("common.projection_bucket.widen_many", _nothing, SLICED),
        pytest.param("common.projection_bucket.round_many", _nothing, SLICED, marks=night),
        pytest.param("common.projection_bucket.poison_many", _nothing, SLICED, marks=night),
        pytest.param("common.projection_bucket.gather_rows_many", _nothing, SLICED, marks=night),
    ],
)
def test_mutants_are_caught(name: str, mutant: Any, spec: str, nan: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, steps = shapes_of(spec), 3 if spec == SLICED else 2
    want = outcome(spec, "reference", False, shapes, 2, steps)
    monkeypatch.setattr(f"grace.methods.{name}", mutant)
    with pytest.raises(CAUGHT):
        assert outcome.__wrapped__(spec, "triton", True, shapes, 2, steps) == want
