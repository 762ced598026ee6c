"""Velocities of a bucket on an accelerator, by few launches: bytes, means and memories as on the CPU, one tensor at a time.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.contract.lent import Lent
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import cpu_as_accelerator
from grace.memories.velocities import VelocityBucket
from grace.registry.policy import Policy
from tests.laws.bucket_runs import SOME, Run, Shapes, assert_same
from tests.laws.test_many import LARGE, SHAPES
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
SPEC = "randomk:ratio=0.3,memory=dgc"  # the quickest that leaves something out
# A tensor that is sent whole keeps its velocity; one is not finite in the third step.
MIXED: Shapes = ((41,), (2, 3), (1,))
CASES = (
    (SPEC, torch.float32), (SPEC, torch.bfloat16), ("randomk:ratio=0.3,memory=dgc,nesterov=true", torch.float16),
    ("none:memory=dgc,clip=0.5", torch.float32),
)  # fmt: skip


class LargeNumbers(Run):
    """All gradients are the largest float16, so that from the second step on means are larger."""

    def _give(self, rank: int, step: int) -> dict[str, Tensor]:
        return {name: x.fill_(65504) for name, x in super()._give(rank, 0).items()}


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
    """Means and states of three steps, and what the network was given."""
    with backends.using(backend), cpu_as_accelerator():
        run = kind(Policy([("*", spec)]), world, shapes, lambda _: together, dtype)
        return [run.step() for _ in range(3)], run.seen


@pytest.mark.parametrize(("spec", "dtype"), CASES)
def test_a_bucket_has_the_bytes_of_the_cpu(spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    settle, sizes = VelocityBucket.settle, list[int]()

    def look(self: VelocityBucket, outs: Sequence[Any], masked: Sequence[bool]) -> Tensor:
        sizes.append(len(outs))
        return settle(self, outs, masked)

    monkeypatch.setattr(VelocityBucket, "settle", look)
    assert outcome(spec, dtype, "triton", True) == outcome(spec, dtype, "reference", False)
    assert sizes == [len(MIXED)] * 3, "in three steps"


def test_means_that_a_narrow_type_cannot_hold() -> None:
    case = (SPEC, torch.float16)
    right = outcome(*case, "reference", False, MIXED, LargeNumbers)
    assert outcome(*case, "triton", True, MIXED, LargeNumbers) == right


def test_an_empty_tensor_among_them() -> None:
    shapes = ((3,), (0,), (4,), (1,))
    assert outcome(SPEC, torch.float32, "triton", True, shapes) == outcome(
        SPEC, torch.float32, "reference", False, shapes
    )


def test_results_that_a_method_has_left_elsewhere() -> None:
    with backends.using("triton"), cpu_as_accelerator():
        xs, memories = [torch.ones(2, 3), torch.ones(1)], [torch.zeros(2, 2, 3), torch.full((2, 1), 1e38)]
        like = Peer(0, 1, lent=Lent(workspace=Workspace()))
        bucket = VelocityBucket.of(xs, memories, Peers(like, ("a", "b")), nesterov=False)
        assert bucket is not None
        bucket.accelerate(0.5, like, ("a", "b"))
        outs = [Exchanged(torch.full_like(x, 7), torch.full_like(x, 5), None, x.numel() > 1) for x in xs]
        assert bucket.settle(outs, [False, False]).tolist() == [True, False]
    assert [mean.unique().tolist() for mean in bucket.means] == [[7], [7]]
    assert [after.unique().tolist() for after in bucket.successors] == [[1, 5], [0]]


def test_memories_that_move_while_work_is_captured() -> None:
    with backends.using("triton"), cpu_as_accelerator():
        run = Run(Policy([("*", SPEC)]), 1, MIXED, lambda _: True)
        run.step()
        workspace = run.workers[0].workspace
        peers, xs = Peers(run.workers[0].peer(""), tuple("abc")), [torch.ones(shape) for shape in MIXED]
        memories = [torch.zeros(2, *shape) for shape in MIXED]
        with pretend_capturing():
            assert VelocityBucket.of(xs, memories, peers, nesterov=False) is None
        assert len(workspace._old) == len(MIXED), "what was borrowed is given back"


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", [SPEC, "topk:ratio=0.1,memory=dgc", "topk:ratio=0.2,memory=dgc,nesterov=true,clip=1"])
def test_buckets_of_all_kinds(spec: str, dtype: torch.dtype) -> None:
    for more in ((SHAPES, Run, 2), (LARGE, Run, 2), (SHAPES, LargeNumbers, 3)):
        assert outcome(spec, dtype, "triton", True, *more) == outcome(spec, dtype, "reference", False, *more)
    with backends.using("triton"), cpu_as_accelerator():
        assert_same(Policy([("*", spec)]), 3, SHAPES, Policy([("*", "efsignsgd")]), SOME, dtype)


# ---- mutants --------------------------------------------------------------------------------------------------------
def _nothing(flags: Tensor, *_: Any, **__: Any) -> Tensor:
    """Nothing is done."""
    return flags


@pytest.mark.parametrize(
    ("name", "spec", "dtype", "kind"),
    [
        ("forget_many", SPEC, torch.float32, Run),
        ("settle_many", SPEC, torch.float32, Run),
        ("narrow_many", SPEC, torch.bfloat16, Run),
        ("poison_many", SPEC, torch.float16, LargeNumbers),
    ],
)
def test_mutants_are_caught(
    name: str, spec: str, dtype: torch.dtype, kind: type[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = outcome(spec, dtype, "reference", False, MIXED, kind)
    monkeypatch.setattr(f"grace.memories.velocities.{name}", _nothing)
    assert outcome.__wrapped__(spec, dtype, "triton", True, MIXED, kind) != right
