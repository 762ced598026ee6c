"""A learner, message by message: what it takes back weighs what it weighed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.decoupled.codec import dense_bytes
from grace.decoupled.learner import Learner
from grace.decoupled.messages import Contribution, Pull, Update, Welcome
from grace.decoupled.plan import Plan


def parameters() -> dict[str, Tensor]:
    return {"w": torch.ones(40, 30), "b": torch.zeros(3)}


def begin(up: str) -> Learner:
    plan = Plan.of(parameters(), every=4, overlap=4, up=up, down="none")
    learner = Learner("a", parameters(), plan, tokens_per_step=10, start=7)
    welcome(learner)
    return learner


def welcome(learner: Learner) -> None:
    """A syncer comes that has got nothing of this learner."""
    learner.hello()
    learner.receive(Welcome("run", [0], [0], [True], False))


def update(learner: Learner, serial: int, saved: int = 0) -> None:
    wires = [dense_bytes(parameters()[name]) for name in learner.plan.names]
    learner.receive(Update(0, serial, True, saved, wires))


def steps(learner: Learner, count: int) -> None:
    for _ in range(count):
        for p in learner._parameters.values():
            p.sub_(1.0)
        learner.step(1.0)


def pull(learner: Learner) -> Contribution:
    (answer,) = learner.receive(Pull(0, 0))
    assert isinstance(answer, Contribution)
    return answer


@pytest.mark.parametrize("up", ["none", "topk:ratio=0.1"])
@pytest.mark.parametrize("stops", [False, True])
def test_contributions_that_did_not_count_weigh_as_much_again(up: str, stops: bool) -> None:
    learner = begin(up)
    update(learner, 1)
    steps(learner, 5)
    assert (pull(learner).steps, learner.stats.returned) == (5, 0)
    update(learner, 2)
    steps(learner, 3)
    assert pull(learner).tokens == 30
    steps(learner, 2)  # after Δ was sent: they are overwritten
    if stops:
        saved: Any = copy.deepcopy(learner.state_dict())
        learner = begin(up)
        learner.load_state_dict(saved)
    welcome(learner)  # the syncer died before it had saved either
    assert learner.stats.returned == 2
    if stops:
        saved = copy.deepcopy(learner.state_dict())
        learner = begin(up)
        learner.load_state_dict(saved)
        welcome(learner)
    update(learner, 1)
    steps(learner, 1)
    answer = pull(learner)
    assert (answer.steps, answer.tokens) == (5 + 3 + 1, 10 * (5 + 3 + 1))
    update(learner, 2, saved=1)
    steps(learner, 1)
    assert pull(learner).steps == 1


def test_what_is_written_off_weighs_nothing() -> None:
    learner = begin("topk:ratio=0.1")
    update(learner, 1)
    steps(learner, 5)
    pull(learner)
    learner.hello()
    learner.receive(Welcome("another run", [0], [0], [False], False))
    update(learner, 1)
    steps(learner, 1)
    assert pull(learner).steps == 1
