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
    one = Worker(policy, 0, 1)
    one.keep_unapplied()
    if choices:
        one.offer(choices)
        one.use(0)
    return one


def exchange(one: Worker, seed: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(20, 30, generator=made) for name in NAMES}
    (outs,) = simulate([one.exchange(tensors)])
    one.workspace.reset()
    one.advance()
    return {name: out.mean.clone() for name, out in outs.items()}


def owed(one: Worker) -> Any:
    """State that the next step depends on, without the count of steps."""
    saved = one.state_dict()
    return [in_bytes(saved[key]) for key in ("states", "methods", "owed")] + [saved.get("instalments")]


def test_a_trial_that_is_dropped_is_undone() -> None:
    one = worker(TOPK, TOPK, EF21, NONE)
    exchange(one, 0)
    for number in (1, 2, 1):
        one.settle()
        one.use(number, trial=True)
        exchange(one, number)
        one.settle()
        before = owed(one)
        exchange(one, number + 10)
        assert one.settle(NAMES) == 1
        assert owed(one) == before
    one.use(0)
    exchange(one, 20)
    assert one.settle() == 0


def test_a_debt_that_was_paid_by_a_dropped_step_is_owed_again() -> None:
    one = worker()
    exchange(one, 0)
    one.settle()
    one.switch(NONE)
    debt = {name: state[0].clone() for name, state in one.state_dict()["states"].items()}
    exchange(one, 1)  # pays it
    assert not one.state_dict()["owed"]
    assert one.settle(NAMES) == 1
    assert {name: x for name, x in one.state_dict()["owed"].items() if not torch.equal(x, debt[name])} == {}
    means = exchange(one, 2)
    (plain,) = [exchange(worker(NONE), 2)]
    for name in NAMES:
        torch.testing.assert_close(means[name], plain[name] + debt[name])


def test_instalments_that_a_dropped_step_paid_are_owed_again() -> None:
    one = worker(TOPK, TOPK, NONE)
    exchange(one, 0)
    one.settle()
    one.use(1)
    exchange(one, 1)
    one.settle()
    before = owed(one)
    exchange(one, 2)
    assert owed(one) != before
    one.settle(NAMES)
    assert owed(one) == before


def test_a_step_that_counts_may_still_be_dropped_and_one_that_fails_leaves_what_waits() -> None:
    one = worker()
    one.holds = True
    exchange(one, 0)
    one.commit()
    one.settle()
    first = owed(one)
    exchange(one, 1)
    one.commit()  # all have it; none has applied it
    second = owed(one)
    one.settle(waiting=NAMES)
    exchange(one, 2)
    one.abandon()
    assert owed(one) == second
    exchange(one, 2)
    one.commit()
    assert one.settle(NAMES) == 2
    assert owed(one) == first
    for step in range(3, 6):
        exchange(one, step)
        one.commit()
        one.settle()


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
    one = worker()
    exchange(one, 0)
    saved = one.state_dict()
    exchange(one, 1)
    one.load_state_dict(saved, {name: torch.empty(20, 30) for name in NAMES})
    assert one.settle(NAMES) == 0
    assert in_bytes(one.state_dict()["states"]) == in_bytes(saved["states"])


def test_no_memory_is_taken_after_the_first_steps(monkeypatch: Any) -> None:
    one = worker()
    for step in range(3):
        one.settle()
        exchange(one, step)
    places = [{state[0].data_ptr() for _, state in one._states.values()}]
    for step in range(3, 9):
        one.settle(NAMES if step % 3 == 0 else ())
        exchange(one, step)
        places.append({state[0].data_ptr() for _, state in one._states.values()})
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
