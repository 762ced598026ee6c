"""Captured steps: a stand-in for a graph records the operations on tensors and does them again, without Python of Grace's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grace.compute import backends
from grace.errors import ConfigurationError, GraceError, StepMismatch
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import cpu_as_accelerator
from grace.methods import efsignsgd, signsgd
from grace.registry.policy import Policy, Rule
from grace.run.captures import Captures
from grace.run.options import Options
from grace.run.session import Session
from grace.run.simulate import simulate
from grace.run.steps import Steps
from grace.run.worker import Worker
from grace.transports.alone import Alone
from grace.verify.running import clone_state, leaves

W = 2


class Graph(TorchDispatchMode):
    """Records operations, which on the CPU are done at once, too."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


@pytest.fixture(autouse=True)
def accelerator() -> Iterator[None]:
    with backends.using("reference"), cpu_as_accelerator():
        yield


def gradients(step: int) -> list[dict[str, Tensor]]:
    out = []
    for rank in range(W):
        generator = torch.Generator().manual_seed(10 * step + rank)
        out.append({"w": torch.randn(20, 10, generator=generator), "v": torch.randn(37, generator=generator)})
    out[0]["v"][::3] = 0.0  # zeros vote, in another way in each step
    if step == 3:
        out[1]["w"][3, 3] = math.nan
    return out


def make(spec: str) -> list[Worker]:
    return [Worker(Policy([("*", spec)]), rank, W, Options()) for rank in range(W)]


def exchange(workers: list[Worker], given: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    outs = simulate([worker.exchange(batch) for worker, batch in zip(workers, given, strict=True)])
    means = [{name: batch.mean for name, batch in out.items()} for out in outs]
    for worker in workers:
        worker.workspace.reset()
        worker.advance()
    return means


def eager(spec: str, steps: int) -> tuple[list[Worker], list[dict[str, Tensor]]]:
    workers = make(spec)
    return workers, [
        {name: mean.clone() for name, mean in exchange(workers, gradients(step))[1].items()} for step in range(steps)
    ]


def captured(
    spec: str, steps: int, captures: type[Captures] = Captures, plans: bool = True
) -> tuple[list[Worker], list[dict[str, Tensor]]]:
    """A step as usual, then a capture, then replays. A capture does nothing on a GPU; here it is undone."""
    workers = make(spec)
    for worker in workers:
        worker.plans = plans
    exchange(workers, gradients(0))
    for worker in workers:
        worker._captures.__class__ = captures
    static = [{name: x.clone() for name, x in batch.items()} for batch in gradients(1)]
    before = [[clone_state(state) for _, state in worker._states.values()] for worker in workers]
    held = [[state for _, state in worker._states.values()] for worker in workers]
    given = [{name: x.clone() for name, x in batch.items()} for batch in static]
    with pretend_capturing(), Graph() as graph:
        for tensors, source in zip(given, static, strict=True):
            for name in tensors:
                tensors[name].copy_(source[name])
        means = exchange(workers, given)
    for old, new in zip(before, held, strict=True):
        for a, b in zip(leaves(tuple(old)), leaves(tuple(new)), strict=True):
            b.copy_(a)
    replayed = []
    for step in range(1, steps):
        for source, fresh in zip(static, gradients(step), strict=True):
            for name in source:
                source[name].copy_(fresh[name])
        graph.replay()
        for worker in workers:
            worker.replayed()
        replayed.append({name: mean.clone() for name, mean in means[1].items()})
        torch.randn(20, 10), torch.randn(37)  # what is free may be taken by others
    return workers, replayed


SPECS = [
    "topk:ratio=0.2", "efsignsgd", "onebit", "none", "bf16", "powersgd:rank=2,min_rate=0.1", "signsgd:memory=none",
    "gradzip:rank=2,min_rate=0.1",
    "efsignsgd:memory=none", "signum", "signsgd:zero=plus,memory=none",
    "powersgd:rank=2,min_rate=0.1,start_step=1", "topk:ratio=0.2,start=1", "topk:ratio=steps(0:0.5, 1:0.2)",
    "qsgd:bits=4", "efsignsgd:beta=0.7", "natural", "fp8:stochastic=true", "terngrad", "randomk:ratio=0.2", "drive:block=16",
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_replays_are_steps(spec: str):
    """The same means, memories and counts as without a graph; one step of five is not finite."""
    (plain, expected), (workers, replayed) = eager(spec, 6), captured(spec, 6)
    for step, (mean, other) in enumerate(zip(expected[1:], replayed, strict=True), 1):
        for name in mean:
            assert torch.equal(mean[name].nan_to_num(7), other[name].nan_to_num(7)), f"{name!r} in step {step}"
    for worker, other in zip(plain, workers, strict=True):
        assert worker.step == other.step == 6
        for name in ("w", "v"):
            pairs = zip(leaves(worker._states[name][1]), leaves(other._states[name][1]), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)
        worker._wait_for_pending()
        other._wait_for_pending()
        assert worker.nonfinite_seen == other.nonfinite_seen
        assert worker.nonfinite_seen == (0 if spec == "none" else 1)


class NotCopied(Captures):
    """The new state takes the old one's place, as without a graph."""

    def keep_old_state(self, name, old, out, undoes):
        return out


def test_a_state_that_moves_is_noticed():
    expected, replayed = eager("topk:ratio=0.2", 6)[1], captured("topk:ratio=0.2", 6, NotCopied)[1]
    assert not all(
        torch.equal(a["w"].nan_to_num(7), b["w"].nan_to_num(7)) for a, b in zip(expected[1:], replayed, strict=True)
    )


VOTERS = [("signsgd:memory=none", signsgd), ("signum", signsgd), ("efsignsgd:memory=none", efsignsgd)]


@pytest.mark.parametrize("plans", [True, False])
@pytest.mark.parametrize(("spec", "module"), VOTERS)
def test_zeros_vote_by_the_step_of_the_replay(spec: str, module: Any, plans: bool, monkeypatch: pytest.MonkeyPatch):
    """And not by that of the capture, which the mutant does."""

    def same() -> bool:
        pairs = zip(eager(spec, 3)[1][1:], captured(spec, 3, plans=plans)[1], strict=True)
        return all(torch.equal(a[name], b[name]) for a, b in pairs for name in ("w", "v"))

    assert same()
    monkeypatch.setattr(module, "with_phase", lambda encode, rng, written=(): encode((rng.rank or 0) + rng.step))
    assert not same()


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("threshold:v=0.5", "'w': how many bytes threshold:v=0.5 sends depends on the data"),
        ("dgc", "'w': how many bytes dgc sends depends on the data"),
        ("blockrandomk:mode=cyclic", "which blocks have their turn follows from the step"),
        ("blockrandomk:mode=clt", "which rank leads follows from the step"),
        ("acpsgd:rank=1,min_rate=0.1", "depends on whether this step was finite"),
    ],
)
def test_what_a_graph_cannot_repeat_is_refused_at_once(spec: str, why: str):
    workers = make(spec)
    exchange(workers, gradients(0))
    with pretend_capturing(), pytest.raises(ConfigurationError, match=why) as raised:
        exchange(workers, gradients(0))
    assert "such as topk, efsignsgd" in str(raised.value)


@pytest.mark.parametrize("bucket", [True, False])
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            "topk:ratio=0.2,start=2",
            "start=2: at step 1 it has not begun, and replays never would; capture a step from 2 on",
        ),
        ("powersgd:rank=2,min_rate=0.1,start_step=3", "start_step=3: at step 1 it has not begun"),
        (
            "topk:ratio=steps(0:0.5, 2:0.2)",
            r"ratio=steps\(0:0.5, 2:0.2\) changes after step 1, and in replays it would not",
        ),
        ("qsgd:bits=linear(8->4, 100 steps)", r"bits=linear\(8->4, 100 steps\) changes after step 1"),
    ],
)
def test_what_is_still_to_begin_or_to_change_is_refused(spec: str, why: str, bucket: bool):
    workers = make(spec)
    for worker in workers:
        worker.plans = bucket
    exchange(workers, gradients(0))
    with pretend_capturing(), pytest.raises(ConfigurationError, match=why):
        exchange(workers, gradients(0))


@pytest.mark.parametrize("limits", [{"until_step": 2}, {"until_step": 1}])
def test_rules_that_are_still_to_begin_or_to_end_are_refused(limits: dict[str, int]):
    rules = [Rule("*", "none", **limits), Rule("*", "topk:ratio=0.2")]
    workers = [Worker(Policy(rules), rank, W, Options()) for rank in range(W)]
    exchange(workers, gradients(0))
    if limits["until_step"] == 1:
        with pretend_capturing():
            exchange(workers, gradients(1))
        return
    with pretend_capturing(), pytest.raises(ConfigurationError, match="until_step=2 begins or ends after step 1"):
        exchange(workers, gradients(1))


def test_a_replay_of_a_memory_that_has_moved_is_refused():
    """A step without the graph gives the tensor another memory; the graph goes on with the old one."""
    workers = make("topk:ratio=0.2")
    exchange(workers, gradients(0))
    for _ in range(2):  # a new capture is right again
        with pretend_capturing(), Graph() as graph:
            exchange(workers, gradients(1))
        graph.replay()
        for worker in workers:
            worker.replayed()
        exchange(workers, gradients(2))
        graph.replay()
        for worker in workers:
            with pytest.raises(GraceError, match="'w': since the capture a step was made without the graph"):
                worker.replayed()


@pytest.mark.parametrize("spec", ["topk:follow_lr=true", "efsignsgd:memory=distef,follow_lr=true"])
def test_a_learning_rate_that_may_change_is_refused(spec: str):
    workers = make(spec)
    for worker in workers:
        worker.lr = 0.1
    exchange(workers, gradients(0))
    with pretend_capturing(), pytest.raises(ConfigurationError, match="follows the learning rate, which the host"):
        exchange(workers, gradients(0))


@pytest.mark.parametrize("spec", ["qsgd:bits=4", "randomk:ratio=0.1", "topk:ratio=0.2", "none"])
def test_a_step_is_captured_after_a_step_only(spec: str):
    """Replays find their step on the device, where a step before the capture has put it."""
    workers = make(spec)
    with pretend_capturing(), pytest.raises(ConfigurationError, match="make a step before the capture"):
        exchange(workers, gradients(0))


@pytest.mark.parametrize(
    "spec",
    ["topk:ratio=0.2", "qsgd:bits=4", "efsignsgd:communicator=scatterreduce", "topk:ratio=0.2,communicator=parameterserver"],
)  # fmt: skip
def test_a_rank_that_replays_another_step_is_refused(spec: str):
    workers = make(spec)
    exchange(workers, gradients(0))
    with pretend_capturing(), Graph() as graph:
        exchange(workers, gradients(1))
    for late in (0, 1):
        workers[1]._captures.tell_step(workers[1].step - late)  # it has missed a step
        graph.replay()
        for worker in workers:
            worker.replayed()
    for worker in workers:
        with pytest.raises(StepMismatch, match="a rank sent another step than this rank's"):
            worker._wait_for_pending()


class Stopped(Captures):
    """The clock of replays stands."""

    def tell_step(self, step):
        if self._clock is None or self._flags is None:
            Captures.tell_step(self, step)


def test_a_clock_that_stands_is_noticed():
    expected, replayed = eager("qsgd:bits=4", 4)[1], captured("qsgd:bits=4", 4, Stopped)[1]
    assert torch.equal(expected[1]["w"], replayed[0]["w"])
    assert not torch.equal(expected[2]["w"], replayed[1]["w"])


def test_subsets_of_many_follow_the_clock():
    x = [{"w": torch.randn(5000, generator=torch.Generator().manual_seed(t))} for t in range(4)]
    (plain,), (worker,) = make("randomk:ratio=0.01")[:1], make("randomk:ratio=0.01")[:1]
    plain.world = worker.world = 1
    expected = [exchange_one(plain, {"w": batch["w"].clone()}) for batch in x]
    exchange_one(worker, {"w": x[0]["w"].clone()})
    static = x[1]["w"].clone()
    state = clone_state(worker._states["w"][1])
    with pretend_capturing(), Graph() as graph:
        mean = exchange_one(worker, {"w": static.clone()}, copy=False)
    for a, b in zip(leaves(tuple(state)), leaves(tuple(worker._states["w"][1])), strict=True):
        b.copy_(a)
    for want, batch in zip(expected[1:], x[1:], strict=True):
        static.copy_(batch["w"])
        graph.replay()
        worker.replayed()
        assert torch.equal(mean, want)


def exchange_one(worker: Worker, given: dict[str, Tensor], *, copy: bool = True) -> Tensor:
    (outs,) = simulate([worker.exchange(given)])
    mean = outs["w"].mean
    worker.workspace.reset()
    worker.advance()
    return mean.clone() if copy else mean


def test_a_capture_is_no_step_and_a_replay_is_one():
    steps = Steps(Session({"w": torch.empty(50)}, Policy([("*", "topk:ratio=0.1")]), Alone()))
    session, x = steps.session, torch.randn(50)
    steps.step({"w": x.clone()})
    with pretend_capturing(), Graph() as graph:
        steps.step({"w": x.clone()})
    assert (session.worker.step, session.stats.steps) == (1, 1)
    for count in (2, 3):
        graph.replay()
        session.replayed()
        assert (session.worker.step, session.stats.steps) == (count, count)
    steps.step({"w": x.clone()})
    assert session.worker.step == 4


class NotCopiedBefore(Captures):
    """Mutant: a dropped replay leaves the states that it has made."""

    def undo(self) -> None:
        pass


def dropped(spec: str, captures: type[Captures] = Captures) -> tuple[list[Worker], list[Worker]]:
    """Workers that drop their second replay of three, and workers to which it did not happen, but for the count of steps."""
    both = []
    for drops in (True, False):
        workers = make(spec)
        for worker in workers:
            worker.keep_unapplied()
        exchange(workers, gradients(0))
        for worker in workers:
            worker.settle()
            worker._captures.__class__ = captures
        static = gradients(1)
        held = [[state for _, state in worker._states.values()] for worker in workers]
        before = [[clone_state(state) for state in states] for states in held]
        with pretend_capturing(), Graph() as graph:
            given = [{name: x.clone() for name, x in grads.items()} for grads in static]
            exchange(workers, given)
        for old, new in zip(before, held, strict=True):
            for a, b in zip(leaves(tuple(old)), leaves(tuple(new)), strict=True):
                b.copy_(a)
        for step in (1, 2, 4):
            if step == 2 and not drops:
                for worker in workers:
                    worker.step += 1
                    worker._captures.tell_step(worker.step)
                continue
            for source, fresh in zip(static, gradients(step), strict=True):
                for name in source:
                    source[name].copy_(fresh[name])
            graph.replay()
            for worker in workers:
                worker.replayed(applied=step != 2)
        both.append(workers)
    return both[0], both[1]


def same_states(some: list[Worker], others: list[Worker]) -> bool:
    return all(
        torch.equal(a, b)
        for worker, other in zip(some, others, strict=True)
        for name in ("w", "v")
        for a, b in zip(leaves(worker._states[name][1]), leaves(other._states[name][1]), strict=True)
    )


@pytest.mark.parametrize(
    "spec", ["topk:ratio=0.2", "powersgd:rank=2,min_rate=0.1", "efsignsgd:beta=0.7", "qsgd:bits=4"]
)
def test_a_replay_that_is_dropped_owes_nothing(spec: str):
    assert same_states(*dropped(spec))


def test_a_replay_that_is_not_undone_is_noticed():
    assert not same_states(*dropped("topk:ratio=0.2", NotCopiedBefore))


def test_a_worker_that_keeps_nothing_refuses_to_undo():
    with pytest.raises(GraceError, match="keeps nothing that could be undone"):
        make("none")[0].replayed(applied=False)


def test_replayed_without_a_capture_is_refused():
    with pytest.raises(GraceError, match="without a captured step"):
        make("none")[0].replayed()
