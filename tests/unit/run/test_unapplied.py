"""Exchanges that are undone beside what else changes a worker's states: trials, switches, debts, steps that may fail."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace import Policy
from grace.run import Worker, simulate
from grace.run.options import Options
from grace.run.session import Session
from grace.run.watch import DebtWatch
from grace.transports.alone import Alone
from tests.laws.bucket_runs import in_bytes

TOPK = Policy([("*", "topk:ratio=0.1")])
EF21 = Policy([("*", "topk:ratio=0.1,memory=ef21m")])
NONE = Policy([("*", "none")])
NAMES = ("a", "b")


def worker(policy: Policy = TOPK, *choices: Policy) -> Worker:
    lone = Worker(policy, 0, 1)
    lone.keep_unapplied()
    if choices:
        lone.offer(choices)
        lone.use(0)
    return lone


def exchange(lone: Worker, seed: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(20, 30, generator=made) for name in NAMES}
    (outs,) = simulate([lone.exchange(tensors)])
    lone.workspace.reset()
    lone.advance()
    return {name: out.mean.clone() for name, out in outs.items()}


def owed(lone: Worker) -> Any:
    """State that the next step depends on, without the count of steps."""
    saved = lone.state_dict()
    return [in_bytes(saved[key]) for key in ("states", "methods", "owed")] + [saved.get("instalments")]


def test_a_trial_that_is_dropped_is_undone() -> None:
    lone = worker(TOPK, TOPK, EF21, NONE)
    exchange(lone, 0)
    for number in (1, 2, 1):
        lone.settle()
        lone.use(number, trial=True)
        exchange(lone, number)
        lone.settle()
        before = owed(lone)
        exchange(lone, number + 10)
        assert lone.settle(NAMES) == 1
        assert owed(lone) == before
    lone.use(0)
    exchange(lone, 20)
    assert lone.settle() == 0


def test_a_debt_that_was_paid_by_a_dropped_step_is_owed_again() -> None:
    lone = worker()
    exchange(lone, 0)
    lone.settle()
    lone.switch(NONE)
    debt = {name: state[0].clone() for name, state in lone.state_dict()["states"].items()}
    exchange(lone, 1)  # pays it
    assert not lone.state_dict()["owed"]
    assert lone.settle(NAMES) == 1
    assert {name: x for name, x in lone.state_dict()["owed"].items() if not torch.equal(x, debt[name])} == {}
    means = exchange(lone, 2)
    (plain,) = [exchange(worker(NONE), 2)]
    for name in NAMES:
        torch.testing.assert_close(means[name], plain[name] + debt[name])


def test_instalments_that_a_dropped_step_paid_are_owed_again() -> None:
    lone = worker(TOPK, TOPK, NONE)
    exchange(lone, 0)
    lone.settle()
    lone.use(1)
    exchange(lone, 1)
    lone.settle()
    before = owed(lone)
    exchange(lone, 2)
    assert owed(lone) != before
    lone.settle(NAMES)
    assert owed(lone) == before


def test_a_step_that_counts_may_still_be_dropped_and_one_that_fails_leaves_what_waits() -> None:
    lone = worker()
    lone.holds = True
    exchange(lone, 0)
    lone.commit()
    lone.settle()
    first = owed(lone)
    exchange(lone, 1)
    lone.commit()  # all have it; none has applied it
    second = owed(lone)
    lone.settle(waiting=NAMES)
    exchange(lone, 2)
    lone.abandon()
    assert owed(lone) == second
    exchange(lone, 2)
    lone.commit()
    assert lone.settle(NAMES) == 2
    assert owed(lone) == first
    for step in range(3, 6):
        exchange(lone, step)
        lone.commit()
        lone.settle()


def test_a_group_is_dropped_as_a_whole() -> None:
    like = {name: torch.empty(20, 30) for name in NAMES}
    session = Session(like, TOPK, Alone(), Options(granularity="model"))
    session.worker.keep_unapplied()
    step = {name: torch.ones(20, 30) for name in NAMES}
    session.exchange({name: x.clone() for name, x in step.items()})
    before = in_bytes(session.state_dict()["states"])
    session.settle(dropped=["a"])
    assert in_bytes(session.state_dict()["states"]) == before, "a part of it was applied"
    session.exchange({name: x.clone() for name, x in step.items()})
    session.settle(dropped=NAMES)
    assert in_bytes(session.state_dict()["states"]) == before
    assert session.stats.dropped == 1


def test_what_is_loaded_is_not_undone() -> None:
    lone = worker()
    exchange(lone, 0)
    saved = lone.state_dict()
    exchange(lone, 1)
    lone.load_state_dict(saved, {name: torch.empty(20, 30) for name in NAMES})
    assert lone.settle(NAMES) == 0
    assert in_bytes(lone.state_dict()["states"]) == in_bytes(saved["states"])


def test_no_memory_is_taken_after_the_first_steps(monkeypatch: Any) -> None:
    lone = worker()
    for step in range(3):
        lone.settle()
        exchange(lone, step)
    places = [{state[0].data_ptr() for _, state in lone._states.values()}]
    for step in range(3, 9):
        lone.settle(NAMES if step % 3 == 0 else ())
        exchange(lone, step)
        places.append({state[0].data_ptr() for _, state in lone._states.values()})
    assert len(set().union(*places)) == 2 * len(NAMES), "two sides that take turns"


def test_a_dropped_step_is_no_sign_of_a_training_that_drifts_apart() -> None:
    watch = DebtWatch()
    for _ in range(2):
        watch.see("a", torch.ones(4), torch.ones(4))
        watch.end_step()
    assert len(watch._looks) == 1
    watch.forget_step(["b"])
    assert len(watch._looks) == 1
    watch.forget_step(["a"])
    assert watch._looks == []
