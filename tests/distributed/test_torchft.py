"""Per-step membership by torchft: by its own manager, where it is installed, and by one that stands in for it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.adapters.torchft import FaultTolerant
from grace.collectives import AllGather, AllReduce, Broadcast
from grace.errors import ConfigurationError, TransportError
from tests.patience import PATIENCE
from tests.unit.networks import Threads
from tests.unit.run.test_elastic import in_threads

SHAPE = (8, 6)


@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="pip install 'grace-dl[torchft]'")
def test_under_torchfts_own_lighthouse() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.torchft_replicas"],
        capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fine" in done.stdout


class Done:
    def wait(self, timeout: Any = None) -> bool:
        return True


class Group:
    """As torchft's process group, of threads."""

    def __init__(self) -> None:
        self.member: Any = None

    def configure(self, member: Any) -> None:
        self.member = member

    def allreduce(self, tensors: list[Tensor], options: Any) -> Done:
        op = "max" if options.reduceOp == torch.distributed.ReduceOp.MAX else "sum"
        tensors[0].copy_(self._run(AllReduce(tensors[0].clone(), op)))
        return Done()

    def allgather(self, outs: list[list[Tensor]], tensors: list[Tensor], options: Any) -> Done:
        for out, x in zip(outs[0], self._run(AllGather(tensors[0].clone())), strict=True):
            out.copy_(x)
        return Done()

    def broadcast(self, tensors: list[Tensor], options: Any) -> Done:
        tensors[0].copy_(self._run(Broadcast(tensors[0].clone(), options.rootRank)))
        return Done()

    def _run(self, op: Any) -> Tensor:
        try:
            return self.member.run(op)
        except Exception as error:
            raise RuntimeError("a replica is gone") from error


class Manager:
    """As torchft's: it does not commit a step in which something went wrong."""

    def __init__(self, group: Group):
        self.group, self.step, self.error = group, 0, None
        self.begins: Any = None

    def start_quorum(self, member: Any = None) -> None:
        self.error = None
        if member is not None:
            self.group.configure(member)

    def wait_quorum(self) -> None: ...

    def participating_rank(self) -> int:
        return int(self.group.member.rank)

    def num_participants(self) -> int:
        return int(self.group.member.world)

    def current_step(self) -> int:
        return self.step

    def errored(self) -> Any:
        return self.error

    def report_error(self, e: Exception) -> None:
        self.error = e

    def should_commit(self) -> bool:
        self.step += self.error is None
        return self.error is None


def gradient(rank: int, step: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(100 * step + rank))


def make(group: Group | None = None, spec: str = "topk:ratio=0.1") -> FaultTolerant:
    group = group or Group()
    return FaultTolerant(Manager(group), group, {"w": torch.empty(SHAPE)}, grace.Policy([("*", spec)]))


def run(spec: str) -> float:
    """Three replicas, of which one is gone after two steps, in the midst of the third: how far off conservation is."""
    first, second = Threads(3), Threads(2)
    debts: list[Any] = [None] * 3

    def job(rank: int) -> Any:
        ft = make(spec=spec)
        manager, model = ft.manager, torch.zeros(SHAPE)
        manager.start_quorum(first.member(rank))  # type: ignore[attr-defined]
        tried = 0
        while manager.current_step() < 5:
            step = manager.current_step()
            debts[rank] = ft.elastic.session.worker.debts().get("w", torch.zeros(())).clone()
            if rank == 2 and step == 2:
                first.barrier.abort()
                return None
            means = ft.exchange({"w": gradient(rank, step)})
            if ft.should_commit():
                model += means["w"]
                manager.start_quorum()  # type: ignore[attr-defined]
            else:
                tried += 1
                assert isinstance(manager.errored(), TransportError)
                manager.start_quorum(second.member(rank))  # type: ignore[attr-defined]
        assert tried == 1
        return model, ft.elastic.session.worker.debts().get("w", torch.zeros(())), str(ft.last)

    ends = in_threads(3, job, first, second)
    assert torch.equal(ends[0][0], ends[1][0])
    assert "step 2: 2 workers go on, 0 join; 1 are lost" in ends[0][2]
    computed = sum(sum(gradient(r, s) for r in range(3)) / 3 for s in range(2))
    computed = computed + sum(sum(gradient(r, s) for r in range(2)) / 2 for s in range(2, 5))
    return float((ends[0][0] + ends[0][1] + ends[1][1] + debts[2] - computed).abs().max())


@pytest.mark.parametrize("spec", ["topk:ratio=0.1", "efsignsgd:communicator=scatterreduce,server_memory=true"])
def test_a_step_that_the_manager_does_not_commit_is_undone(spec: str) -> None:
    assert run(spec) < 1e-5


def test_an_adapter_that_scales_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from grace.run.members import carry

    monkeypatch.setattr("grace.run.worker.carry", lambda state, factor: carry(state, 1.0))
    assert run("topk:ratio=0.1") > 1e-3


def test_what_is_no_manager_is_refused() -> None:
    class Beside(Manager):
        _use_async_quorum = True

    like = {"w": torch.empty(SHAPE)}
    with pytest.raises(ConfigurationError, match=r"object lacks wait_quorum.*give a torchft.Manager"):
        FaultTolerant(object(), Group(), like, "none")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="use_async_quorum=False"):
        FaultTolerant(Beside(Group()), Group(), like, "none")
    with pytest.raises(ConfigurationError, match="cannot be configured anew"):
        FaultTolerant(Manager(Group()), object(), like, "none")
