"""Successors of states, of a bucket on an accelerator, by few launches: bytes, means and states as on the CPU, one tensor at a
time.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.contract.lent import Lent
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import cpu_as_accelerator
from grace.memories.successors import SuccessorBucket
from grace.registry.policy import Policy
from tests.laws.bucket_runs import SOME, Run, Shapes, assert_same
from tests.laws.test_many import LARGE, SHAPES
from tests.unit.kernels.triton_checks import interpreter, night
from tests.unit.memories.test_velocities import LargeNumbers

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
# The first is not finite in the third step.
MIXED: Shapes = ((41,), (2, 3), (1,))
SIGNUM = "signum:beta=0.7"
EF21 = "randomk:ratio=0.3,memory=ef21"
CASES = (
    (EF21, torch.float32), ("efsignsgd:block=32,memory=ef21m,eta=0.3", torch.float16),
    ("efsignsgd:block=32,memory=distef,mu=0.7", torch.float32),
    (SIGNUM, torch.float32), (SIGNUM, torch.bfloat16), ("none:memory=momentum,beta=0.7", torch.float32),
    ("none:memory=momentum,beta=0.7", torch.bfloat16),
)  # fmt: skip
AT_NIGHT = (
    EF21,
    "topk:ratio=0.1,memory=ef21m",
    "u8bit:block=16,memory=ef21",
    "efsignsgd:memory=distef",
    SIGNUM,
    "signum:zero=abstain",
    "fp8:block=32,memory=momentum",
    "randomk:ratio=0.3,memory=momentum,beta=0.5",
)


@functools.cache
def outcome(
    spec: str,
    dtype: torch.dtype,
    backend: str,
    together: bool,
    shapes: Shapes = MIXED,
    kind: type[Run] = Run,
    world: int = 1,
) -> Any:
    """Means and states of four steps, and what the network was given."""
    with backends.using(backend), cpu_as_accelerator():
        run = kind(Policy([("*", spec)]), world, shapes, lambda _: together, dtype)
        return [run.step() for _ in range(4)], run.seen


@pytest.mark.parametrize(("spec", "dtype"), CASES)
def test_a_bucket_has_the_bytes_of_the_cpu(spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    settle, sizes = SuccessorBucket.settle, list[int]()

    def look(self: SuccessorBucket, finite: Tensor, *args: Any, **how: Any) -> Any:
        sizes.append(len(finite))
        return settle(self, finite, *args, **how)

    monkeypatch.setattr(SuccessorBucket, "settle", look)
    assert outcome.__wrapped__(spec, dtype, "triton", True) == outcome(spec, dtype, "reference", False)
    assert sizes == [len(MIXED)] * 4, "of four steps"


class InfAtOnce(Run):
    """The first step is the one that is not finite, and leaves one tensor behind."""

    def _give(self, rank: int, step: int) -> dict[str, Tensor]:
        return super()._give(rank, step + 2)


@pytest.mark.parametrize(("spec", "dtype"), CASES[:2])
def test_first_steps_that_are_not_finite(spec: str, dtype: torch.dtype) -> None:
    run = (spec, dtype, "reference", False, MIXED, InfAtOnce, 2)
    assert outcome(*run[:2], "triton", True, *run[4:]) == outcome(*run)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_launches_of_first_steps_do_not_grow(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches for flags, poison and states: see docs/data/launches.md."""
    count = list[str]()
    monkeypatch.setattr(
        "triton.runtime.interpreter.GridExecutor.__call__", lambda self, *_, **__: count.append(self.fn.__name__)
    )
    with backends.using("triton"), cpu_as_accelerator():
        for T in (2, 5):
            count.clear()
            Run(Policy([("*", EF21)]), 1, ((2, 3),) * T, lambda _: True, dtype).step()
            assert count == ["_look", "_poison", "_settle"]


def test_an_empty_tensor_among_them() -> None:
    shapes = ((3,), (0,), (4,), (1,))
    case = (SIGNUM, torch.float32)
    assert outcome(*case, "triton", True, shapes) == outcome(*case, "reference", False, shapes)


def test_states_that_move_while_work_is_captured() -> None:
    with backends.using("triton"), cpu_as_accelerator():
        xs, workspace = [torch.ones(2, 3), torch.ones(1)], Workspace()
        states = [[torch.zeros(2, 3), torch.zeros(1)]]
        like = Peer(0, 1, lent=Lent(workspace=workspace))
        peers, busy = (Peers(of, ("a", "b")) for of in (like, like.lending(keep_rest=True)))
        with pretend_capturing():
            assert SuccessorBucket.of(xs, states, peers) is None
        assert [old.shape for old in workspace._old] == [x.shape for x in xs], "what was borrowed is given back"
        assert SuccessorBucket.of(xs, states, busy) is None
        assert SuccessorBucket.of(xs, [[x.double() for x in xs]], peers) is None


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", AT_NIGHT)
def test_buckets_of_all_kinds(spec: str, dtype: torch.dtype) -> None:
    for more in ((SHAPES, Run, 2), (LARGE, Run, 2), (SHAPES, LargeNumbers, 3)):
        assert outcome(spec, dtype, "triton", True, *more) == outcome(spec, dtype, "reference", False, *more)
    with backends.using("triton"), cpu_as_accelerator():
        assert_same(Policy([("*", spec)]), 3, SHAPES, Policy([("*", "efsignsgd")]), SOME, dtype)


# ---- mutants --------------------------------------------------------------------------------------------------------
def _nothing(flags: Any, *_: Any, **__: Any) -> Any:
    """Nothing is done."""
    return flags


MUTANTS = (
    ("grace.memories.successors.settle_many", SIGNUM, torch.float32, Run),
    ("grace.memories.successors.narrow_many", SIGNUM, torch.bfloat16, Run),
    ("grace.memories.successors.poison_many", "none:memory=momentum,beta=0.7", torch.bfloat16, Run),
    ("grace.memories.momentum.finite_many", "none:memory=momentum,beta=0.7", torch.float32, Run),
    ("torch._foreach_sub_", EF21, torch.float32, Run),
    ("grace.memories.ef21.poison_many", EF21, torch.float32, InfAtOnce),
    ("grace.memories.ef21.finite_many", EF21, torch.float32, InfAtOnce),
    ("grace.memories.ef21.average_", "none:memory=ef21m", torch.float32, Run),
    ("grace.memories.distef.average_", "none:memory=distef", torch.float32, Run),
    ("grace.memories.momentum.average_", SIGNUM, torch.float32, Run),
)  # fmt: skip


@pytest.mark.parametrize(("where", "spec", "dtype", "kind"), MUTANTS)
def test_mutants_are_caught(
    where: str, spec: str, dtype: torch.dtype, kind: type[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = outcome(spec, dtype, "reference", False, MIXED, kind)
    monkeypatch.setattr(where, _nothing)
    assert outcome.__wrapped__(spec, dtype, "triton", True, MIXED, kind) != right
