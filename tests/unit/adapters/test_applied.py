"""Replays whose gradients nobody applies, as far as a handle can know; all else is in tests/distributed/test_applied.py."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from grace.adapters.applied import Applied
from grace.flags.capturing import pretend_capturing


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "grace")


def watched() -> tuple[Any, torch.optim.Optimizer]:
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(2)).sum().backward()
    session: Any = SimpleNamespace(rank=0, worker=SimpleNamespace(keep_unapplied=lambda ask: None))
    session.applied = Applied([session], dict(layer.named_parameters()), optimizer)
    return session, optimizer


def test_a_replay_without_a_step_of_the_optimizer_is_told_once(caplog: pytest.LogCaptureFixture):
    session, optimizer = watched()
    for _ in range(3):
        session.worker.on_replay(True)
    assert [record.message.count("replayed(applied=False)") for record in caplog.records] == [1]
    assert optimizer.param_groups  # it lives: one that does not steps no more


@pytest.mark.parametrize("first", ["step", "replayed"])
def test_steps_between_replays_are_heard_of(first: str, caplog: pytest.LogCaptureFixture):
    session, optimizer = watched()
    for _ in range(3):
        for act in (first, "replayed" if first == "step" else "step"):
            optimizer.step() if act == "step" else session.worker.on_replay(True)
    session.worker.on_replay(False)
    optimizer.step()
    session.worker.on_replay(True)
    assert not caplog.records


def test_a_step_that_is_captured_with_the_backward_pass_is_in_every_replay(caplog: pytest.LogCaptureFixture):
    session, optimizer = watched()
    with pretend_capturing():
        optimizer.step()
    for _ in range(3):
        session.worker.on_replay(True)
    assert not caplog.records
