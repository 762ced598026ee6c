"""Workers come and go: what is computed is applied, owed, or lost with a worker, and nothing else happens to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

import grace
import grace.run.members as members
import grace.run.simulator as simulator
from grace.contract.conversation import label_parts
from grace.contract.method import Exchanged, Method
from grace.run.worker import Worker

SHAPE = (8, 6)
SPREAD = True
CONSERVING = [
    "none", "topk:ratio=0.1", "efsignsgd", "qsgd:bits=4,memory=residual", "powersgd:rank=2,min_rate=0.5",
    "acpsgd:rank=1,min_rate=0.5", "topk:ratio=0.1,communicator=scatterreduce", "randomk:ratio=0.2",
    "efsignsgd:communicator=scatterreduce,server_memory=true", "topk:ratio=0.2,machine=1", "topk:ratio=0.1,start=3",
]  # fmt: skip
# What they apply is not a sum of what was computed, so only agreement and that all goes on are asked for.
OTHERS = ["topk:memory=dgc", "topk:memory=distef", "topk:ratio=0.2,memory=ef21", "signsgd", "varsparse", "gradiveq"]
# A step of these workers (numbers are taken modulo how many there are), or a change.
EVENTS = st.one_of(
    st.sets(st.integers(0, 6), min_size=1, max_size=5).map(lambda some: ("step", sorted(some))),
    st.tuples(st.sampled_from(["lose", "leave", "late"]), st.integers(0, 6)),
    st.just(("join", 0)),
    st.just(("step", list(range(7)))),
)
SCRIPTS = st.lists(EVENTS, min_size=3, max_size=10)
LONG = [
    ("step", [0, 1, 2]), ("step", [0, 2]), ("late", 1), ("join", 0), ("step", [0, 1, 2, 3]), ("lose", 1), ("step", [1, 2]),
    ("leave", 2), ("step", [0, 1]), ("join", 0), ("join", 0), ("step", [1, 3]), ("step", [0, 1, 2, 3]),
]  # fmt: skip


def disagreement(outs: Sequence[dict[str, Exchanged[Any]]]) -> bool:
    return any(not torch.equal(out[name].mean, outs[0][name].mean) for out in outs for name in out)


def run(method: Method[Any] | str, script: Sequence[tuple[str, Any]], monkeypatch: Any) -> float:
    """Applied + owed + lost - computed, its largest number; inf where workers' means differ. Fails where one hangs."""
    apart = False

    def watch(runs: Any, grid: Any) -> Any:
        nonlocal apart
        outs = simulate(runs, grid)
        apart = apart or disagreement(outs)
        return outs

    simulate = simulator.simulate
    sim = grace.Simulator(grace.Policy([("*", method)]), 3)
    random = torch.Generator().manual_seed(0)
    computed, accounted = torch.zeros(SHAPE, dtype=torch.float64), torch.zeros(SHAPE, dtype=torch.float64)
    with monkeypatch.context() as patch:
        patch.setattr(simulator, "simulate", watch)
        for what, which in script:
            if what == "step":
                here = sorted({i % sim.world for i in which})
                xs = [torch.randn(SHAPE, generator=random) for _ in here]
                accounted += sim.step({"w": xs}, lr=0.1, present=here)["w"]
                computed += torch.stack(xs).double().mean(0)
            elif what == "join" and sim.world < 7:
                assert sim.join() == sim.world - 1
            elif what == "late":
                worker = sim.workers[which % sim.world]
                x = torch.randn(SHAPE, generator=random)
                sim.late(which % sim.world, {"w": x})
                computed += x.double() / worker.world
            elif what == "leave" and sim.world > 1:
                sim.leave(which % sim.world)
            elif what == "lose" and sim.world > 1:
                accounted += sim.lose(which % sim.world).get("w", 0.0)
    accounted += sim.debts().get("w", torch.zeros(SHAPE))
    return float("inf") if apart else float((computed - accounted).abs().max())


@pytest.mark.parametrize("spec", CONSERVING)
@seed(1)
@settings(max_examples=int(os.environ.get("GRACE_MEMBERSHIPS", "8")), deadline=None, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@example(script=LONG)
@given(script=SCRIPTS)
def test_nothing_is_lost_but_with_a_worker(spec: str, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(spec, script, monkeypatch) < 1e-5


@pytest.mark.parametrize("spec", OTHERS)
def test_any_method_goes_on_among_others(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(spec, LONG, monkeypatch) < float("inf")


@pytest.mark.parametrize("which", ["unscaled", "sum kept", "forgotten", "late twice", "stale", "chunk kept"])
def test_a_membership_with_a_defect_is_caught(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each breaks one rule of :mod:`grace.run.members`."""
    carry, late, spec = members.carry, Worker.late, "topk:ratio=0.1"
    if which == "unscaled":
        monkeypatch.setattr("grace.run.worker.carry", lambda state, factor: carry(state, 1.0))
    elif which == "sum kept":
        monkeypatch.setattr("grace.run.worker.carry", lambda state, factor: carry(state, 1 / factor))
    elif which == "forgotten":
        monkeypatch.setattr(simulator.Simulator, "leave", simulator.Simulator.lose)
    elif which == "late twice":
        monkeypatch.setattr(Worker, "late", lambda self, xs: late(self, {name: 2 * x for name, x in xs.items()}))
    elif which == "stale":
        monkeypatch.setattr(Worker, "catch_up", lambda *args: None)
        spec = "acpsgd:rank=1,min_rate=0.5"
    else:
        spec = "efsignsgd:communicator=scatterreduce,server_memory=true"
        monkeypatch.setattr("grace.communicators.two_hops.TwoHops.kinds", lambda self, state: label_parts(state, "own"))
    with contextlib.suppress(grace.errors.GraceError):  # or it says so
        assert run(spec, LONG, monkeypatch) > 1e-3


def test_what_a_straggler_computed_is_only_late() -> None:
    """As worked out by hand: two of three take part, the third's gradient comes with its next one."""
    sim = grace.Simulator(grace.Policy([("*", "topk:ratio=1.0")]), 3)
    sim.step({"w": [torch.zeros(2)] * 3})
    mean = sim.step({"w": [torch.tensor([3.0, 0]), torch.tensor([6.0, 0])]}, present=[0, 1])["w"]
    assert mean.tolist() == [4.5, 0], "the mean of those who took part"
    sim.late(2, {"w": torch.tensor([9.0, 0])})
    assert sim.debts()["w"].tolist() == [3, 0]
    assert sim.step({"w": [torch.zeros(2)] * 3})["w"].tolist() == [3, 0]


def test_survivors_scale_what_they_owe() -> None:
    """Crash from four to three: 1, 2, 3 become 3/4 of that, and the lost worker's share is 4/4."""
    sim = grace.Simulator(grace.Policy([("*", "topk:ratio=0.5")]), 4)
    for i, worker in enumerate(sim.workers):
        worker.late({"w": torch.tensor([i + 1.0, 0])})
    assert sim.lose(3)["w"].tolist() == [1, 0]
    assert sim.debts()["w"].tolist() == [1.5, 0]
    sim.step({"w": [torch.tensor([0.0, 9])] * 3})
    assert [worker.state.debts()["w"].tolist() for worker in sim.workers] == [[0.75, 0], [1.5, 0], [2.25, 0]]


@pytest.mark.parametrize("present", [[], [0, 0], [1, 0], [3]])
def test_workers_that_there_are_not(present: list[int]) -> None:
    sim = grace.Simulator("none", 3)
    with pytest.raises(grace.errors.InputError, match="legal: some of the workers 0 to 2, in ascending order"):
        sim.step({"w": [torch.ones(2)] * len(present)}, present=present)
    with pytest.raises(grace.errors.InputError, match="worker 3 cannot go; legal: one of 0 to 2"):
        sim.lose(3)
