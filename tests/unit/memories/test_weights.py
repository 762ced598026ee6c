"""Memories with ``beta``, ``gamma`` and ``follow_lr``, of a bucket on an accelerator, by few launches: bytes, means and
memories as on the CPU, one tensor after the other.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

from grace.collectives import AllGather
from grace.compute import backends
from grace.contract.peer import Peers
from grace.errors import ConfigurationError
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import cpu_as_accelerator
from grace.memories import error_feedback
from grace.registry.policy import Policy
from tests.laws.bucket_runs import SOME, Run, Shapes, assert_same, in_bytes
from tests.laws.test_many import LARGE, SHAPES
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
# The first is not finite in the third step.
MIXED: Shapes = ((41,), (2, 3), (1,))
FEEDBACK, FOLLOWING = "efsignsgd:block=32,beta=0.7", "randomk:ratio=0.3,gamma=1.3,follow_lr=true"
CASES = (
    (FEEDBACK, torch.float32), ("fp8:block=32,memory=residual,beta=0.7,gamma=0.3", torch.bfloat16),
    (FOLLOWING, torch.float32), ("fp8:memory=residual,beta=0.9,gamma=1.7,follow_lr=true", torch.float16),
    ("powersgd:beta=0.3,follow_lr=true", torch.bfloat16),
    ("none:memory=distef,follow_lr=true,gamma=0.3", torch.float32), ("efsignsgd:block=32,memory=distef", torch.bfloat16),
    ("powersgd:memory=distef,beta=0.7", torch.float16),
)  # fmt: skip
AT_NIGHT = (
    "efsignsgd:beta=0.7,gamma=1.9,follow_lr=true", "topk:ratio=0.1,beta=0.1", "topk:ratio=0.3,follow_lr=true",
    "thc:block=16,gamma=0.1", "drive:block=16,memory=residual,follow_lr=true", "powersgd:rank=1,min_rate=0.1,beta=0.5",
    "qsgd:communicator=scatterreduce,memory=residual,follow_lr=true", "threshold:v=0.5,beta=0.9,follow_lr=true",
    "efsignsgd:memory=distef,beta=0.9,gamma=0.7,follow_lr=true", "signum:beta=0.5",
)  # fmt: skip
RATES = (0.1, 0.37, 0.01, 0.0, 0.2, 0.07)  # of the steps, of which the third is not finite


class Rated(Run):
    """Each step has its learning rate."""

    def rate(self, step: int) -> float | None:
        return RATES[step % len(RATES)]

    def states(self) -> Any:
        """Numbers as tensors: a learning rate is one of the host's on the CPU."""
        return [in_bytes(in_tensors(worker.state_dict()["states"])) for worker in self.workers]


def in_tensors(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: in_tensors(value) for key, value in state.items()}
    if isinstance(state, tuple | list):
        return [in_tensors(part) for part in state]
    return torch.tensor(state, dtype=torch.float64) if isinstance(state, float) else state


@functools.cache
def outcome(
    spec: str, dtype: torch.dtype, backend: str, where: str, shapes: Shapes = MIXED, world: int = 1, steps: int = 5
) -> Any:
    """Means and states of these steps, and what the network was given: "together", "alone", or on the "host"."""
    with backends.using(backend), contextlib.nullcontext() if where == "host" else cpu_as_accelerator():
        run = Rated(Policy([("*", spec)]), world, shapes, lambda _: where == "together", dtype)
        return [run.step() for _ in range(steps)], run.seen


@pytest.mark.parametrize(("spec", "dtype"), CASES)
def test_a_bucket_has_the_bytes_of_the_cpu(spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    settle, sizes = error_feedback.settle_many_, list[int]()

    def look(outs: Any, *args: Any) -> bool:
        sizes.append(len(outs))
        return settle(outs, *args)

    monkeypatch.setattr(error_feedback, "settle_many_", look)
    assert outcome.__wrapped__(spec, dtype, "triton", "together") == outcome(spec, dtype, "reference", "host")
    assert sizes == [len(MIXED)] * 5


@pytest.mark.parametrize(("spec", "dtype"), CASES[2:4])
def test_an_accelerator_without_triton_has_them_too(
    spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces, if tensors are large."""
    monkeypatch.setattr("grace.memories.many._PIECE", 16)
    assert outcome(spec, dtype, "reference", "alone") == outcome(spec, dtype, "reference", "host")


def test_states_that_move_while_work_is_captured() -> None:
    """Then tensors go one by one, with the same bits."""
    with backends.using("triton"), cpu_as_accelerator():
        runs = [Rated(Policy([("*", FEEDBACK)]), 1, MIXED, lambda _: True) for _ in range(2)]
        peer = runs[0].workers[0].peer("")
        with pretend_capturing():
            method, state = runs[0].workers[0]._ready("layer1", torch.ones(2, 3))
            exchange = method.exchange_all([torch.ones(2, 3)], [state], Peers(peer, ["layer1"]))
            assert isinstance(next(exchange), AllGather)
        assert len(runs[0].workers[0].workspace._old) == 1, "what was borrowed is given back"


@pytest.mark.parametrize("lr", [None, -1.0, torch.inf])
def test_a_rate_that_is_none_is_refused(lr: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.memories.test_weights.RATES", (lr,))
    with backends.using("triton"), cpu_as_accelerator(), pytest.raises(ConfigurationError, match="learning rate"):
        Rated(Policy([("*", FOLLOWING)]), 1, MIXED, lambda _: True).step()


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", AT_NIGHT)
def test_buckets_of_all_kinds(spec: str, dtype: torch.dtype) -> None:
    for shapes in (SHAPES, LARGE)[: 2 if spec == AT_NIGHT[0] else 1]:
        want = outcome(spec, dtype, "reference", "host", shapes, 2)
        assert outcome(spec, dtype, "triton", "together", shapes, 2) == want
    if "follow_lr" not in spec:
        with backends.using("triton"), cpu_as_accelerator():
            assert_same(Policy([("*", spec)]), 3, SHAPES, plans=SOME, dtype=dtype)


# ---- mutants --------------------------------------------------------------------------------------------------------
def _unweighed(xs: list[Tensor], memories: list[Tensor], outs: list[Tensor], *_: Any) -> bool:
    """The memory is added as it is."""
    for x, memory, out in zip(xs, memories, outs, strict=True):
        out.copy_(x + memory)
    return True


def _ones(given: list[Tensor], *_: Any) -> list[Tensor]:
    """Something is added to the sums."""
    return [torch.ones(x.shape) for x in given]


def _first(finite: Any, lr: float, last: Tensor) -> Tensor:
    """Every step's learning rate is kept, whether it was finite or not."""
    return torch.full_like(last, lr)


def _nothing(*_: Any) -> None:
    """Nothing is done."""


MUTANTS = (
    ("grace.memories.error_feedback.weigh_many_", _unweighed, *CASES[0]),
    ("grace.memories.error_feedback.lend_nothing", _ones, *CASES[0]),
    ("grace.memories.error_feedback.choose_rate", _first, *CASES[2]),
    ("grace.memories.error_feedback.narrow_many_", _nothing, *CASES[1]),
    ("torch._foreach_copy_", _nothing, *CASES[2]),
)


@pytest.mark.parametrize(("where", "mutant", "spec", "dtype"), MUTANTS)
def test_mutants_are_caught(
    where: str, mutant: Any, spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = outcome(spec, dtype, "reference", "host")
    monkeypatch.setattr(where, mutant)
    assert outcome.__wrapped__(spec, dtype, "triton", "together") != right
