"""On an accelerator the host learns at the step after the next what was not finite and what was refused."""

from __future__ import annotations

import math

import pytest
import torch

from grace.collectives import AllGather
from grace.compute import backends
from grace.errors import NonFiniteError, PayloadError, StepMismatch
from grace.flags.finite import cpu_as_accelerator
from grace.flags.pending import _Letter
from grace.registry.policy import Policy
from grace.run.options import Options
from grace.run.worker import Worker


def step(worker: Worker, x: torch.Tensor, spoil=None) -> torch.Tensor:
    """A step of a lone worker; ``spoil`` changes what it gathers."""
    run = worker.exchange({"w": x.clone()})
    try:
        op = next(run)
        while True:
            answer = op.buf[None].clone() if isinstance(op, AllGather) else op.buf.clone()
            op = run.send(answer if spoil is None else spoil(answer))
    except StopIteration as stop:
        out = stop.value["w"].mean.clone()
    worker.workspace.reset()
    worker.advance()
    return out


def lone(spec: str = "qsgd:memory=residual", **kwargs) -> Worker:
    return Worker(Policy([("*", spec)]), 0, 1, Options(**kwargs))


X = torch.linspace(-1, 1, 50)
BAD = X.clone().index_fill_(0, torch.tensor(7), math.nan)


@pytest.fixture(autouse=True)
def accelerator():
    with backends.using("reference"), cpu_as_accelerator():
        yield


def test_a_count_of_non_finite_steps_lags_two_steps():
    worker = lone()
    step(worker, X)
    assert step(worker, BAD).isnan().all()
    assert step(worker, X).isfinite().all()
    assert worker.nonfinite_seen == 0
    assert step(worker, X).isfinite().all()
    assert worker.nonfinite_seen == 1
    worker._wait_for_pending()
    assert worker.nonfinite_seen == 1


def test_a_step_begins_while_the_device_is_busy_with_the_last_one(monkeypatch):
    """The host waits for no flag of the step before, in any bucket."""
    worker = lone(nonfinite="error")
    waits = []
    monkeypatch.setattr(_Letter, "read", lambda letter: waits.append(letter) or [True] * letter._count)
    for count in (0, 0, 1, 2):
        step(worker, X)
        assert len(waits) == count


def test_an_error_comes_two_steps_later_and_names_its_own():
    worker = lone(nonfinite="error")
    step(worker, X)
    step(worker, BAD)
    step(worker, X)
    with pytest.raises(NonFiniteError, match="step 1: an inf or NaN in the gradients of 'w'"):
        step(worker, X)


def test_a_skipped_step_is_zero_at_once():
    assert not step(lone(nonfinite="skip"), BAD).any()


def test_what_is_refused_poisons_the_step_and_is_raised_two_steps_later():
    worker = lone()
    step(worker, X)
    before = worker.state_dict()["states"]["w"][0]

    def spoil(answer: torch.Tensor) -> torch.Tensor:
        answer[..., 4:8] = 255  # the first norm
        return answer

    assert step(worker, X, spoil).isnan().all()
    assert torch.equal(worker._states["w"][1].memory, before)
    step(worker, X)
    with pytest.raises(PayloadError, match="norms"):
        step(worker, X)


def test_a_peer_of_another_step_is_named_two_steps_later():
    worker = lone()

    def spoil(answer: torch.Tensor) -> torch.Tensor:
        answer[..., 1] = 9
        return answer

    assert step(worker, X, spoil).isnan().all()
    step(worker, X)
    with pytest.raises(StepMismatch, match="rank 0 sent its step 9, this rank is at step 0"):
        step(worker, X)


def test_an_illegal_index_is_harmless():
    worker = lone("topk:ratio=0.1,index=raw")

    def spoil(answer: torch.Tensor) -> torch.Tensor:
        answer[..., 4 + 20 :] = 255
        return answer

    assert step(worker, X, spoil).isnan().all()
    step(worker, X)
    with pytest.raises(PayloadError, match="indices"):
        step(worker, X)


def test_what_a_former_method_owes_is_not_lost_in_a_step_that_is_not_finite():
    worker = lone("topk:ratio=0.1")
    step(worker, X)
    owed = worker.state_dict()["states"]["w"][0].clone()
    worker.switch(Policy([("*", "none:memory=none")]))
    step(worker, BAD)
    torch.testing.assert_close(step(worker, X), X + owed)
    torch.testing.assert_close(step(worker, X), X)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_debt_is_paid_by_the_exchange_that_it_was_added_to(bad: int):
    """Not by a step before, whose flags are still under way when the debt arises."""
    worker = lone("none:memory=none")
    step(worker, BAD if bad == 0 else X)
    worker.add_debts({"w": torch.ones(50)})
    first = step(worker, BAD if bad == 1 else X)
    second, third = step(worker, X), step(worker, X)
    torch.testing.assert_close((second, third) if bad else (first, second), (X + 1, X))
    torch.testing.assert_close(third, X)
    worker._wait_for_pending()
    assert worker.nonfinite_seen == bad, "where nothing is owed nobody looks"


def test_flags_travel_in_memory_that_is_made_once():
    """Memory for two steps."""
    worker = lone()
    for _ in range(3):
        step(worker, X)
    places = []
    for _ in range(6):
        places.append(worker._findings.pending._sent[-1].letter._room.data_ptr())
        step(worker, X)
    assert len(set(places)) == 2
    assert places[:2] * 3 == places
