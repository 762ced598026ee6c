"""Logs of an exchange: per step, what compression loses, and to whom."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.adapters.handle import BaseHandle
from grace.errors import ConfigurationError
from grace.run.distortion import measure_distortion
from grace.run.session import Session
from grace.run.steps import Steps
from tests.patience import PATIENCE
from tests.unit.networks import Loopback

TOP1 = grace.Policy([("small*", "none"), ("*", "topk:ratio=0.25")])


def begin() -> Steps:
    return Steps(Session({"w": torch.empty(4), "small": torch.empty(2)}, TOP1, Loopback()))


def step(training: Steps, *numbers: float) -> Tensor:
    mean = training.step({"w": torch.tensor(numbers), "small": torch.ones(2)})["w"].clone()
    training.session.logs.report()
    return mean


def test_each_line_is_of_the_steps_since_the_last_one() -> None:
    training, lines = begin(), []
    for _ in range(3):
        step(training, 4.0, 3.0, 0.0, 0.0)
    BaseHandle(training).log(lambda values, at: lines.append((at, values)), every=2, errors_every=4)
    for _ in range(3):
        training.session.logs.report()  # no step has ended: nothing to tell
        step(training, 4.0, 3.0, 0.0, 0.0)
    assert [at for at, _ in lines] == [4, 6]  # each second step of the exchange
    first, second = (values for _, values in lines)
    assert "grace/error/w" in first
    assert "grace/error/w" not in second
    assert second["grace/codec_seconds"] > 0 < second["grace/exposed_seconds"]
    assert second["grace/exposed_seconds"] == pytest.approx(
        second["grace/codec_seconds"] + second["grace/exchange_seconds"]
    )
    assert second["grace/memory_norm"] == training.session.worker.memory_norm() > 0


def test_the_error_is_of_gradient_and_memory_and_measuring_it_changes_nothing() -> None:
    training, other, lines = begin(), begin(), []
    training.session.logs.add(lambda values, at: lines.append(values), errors_every=1)
    gradients = [(4.0, 3.0, 0.0, 0.0), (0.0, 0.0, 0.0, 4.0)]
    assert [step(training, *g).tolist() for g in gradients] == [step(other, *g).tolist() for g in gradients]
    errors = [line["grace/error/w"] for line in lines]
    assert errors == pytest.approx([3 / 5, 3 / 5])  # in the second step the memory is 3, and the gradient 4
    assert not [line for line in lines if "grace/error/small" in line]  # goes as it is
    assert training.session.stats.traffic == other.session.stats.traffic
    assert torch.equal(training.session.worker.state.debts()["w"], other.session.worker.state.debts()["w"])


def test_the_memory_norm_is_that_of_what_is_owed() -> None:
    training = begin()
    assert training.session.worker.memory_norm() == 0
    step(training, 4.0, 3.0, 0.0, 0.0)
    step(training, 4.0, 0.0, 2.0, 0.0)
    assert training.session.worker.memory_norm() == pytest.approx(math.hypot(3, 2))


@pytest.mark.parametrize("name", grace.methods())
def test_errors_of_all_methods(name: str) -> None:
    """The error of a method that only casts or codes is tiny; the state that goes in stays as it was."""
    method = grace.method(name)
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    peer, like = grace.Peer(1, 4, step=3, name="w"), x.clone()
    state = method.init(x)
    error = measure_distortion(method, x, state, peer)
    assert error is not None
    assert error >= 0
    assert torch.equal(x, like)
    if name in ("none", "lossless"):
        assert error == 0
    if name in ("bf16", "fp16"):
        assert 0 < error < 0.01
    if name in ("topk", "randomk", "dgc", "powersgd"):
        assert 0.5 < error < 1
    assert measure_distortion(method, torch.full_like(x, math.nan), state, peer) is None


def test_tensorboard_gets_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    training = begin()
    with SummaryWriter(str(tmp_path)) as writer:
        training.session.logs.add(writer, errors_every=1)
        step(training, 4.0, 3.0, 0.0, 0.0)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert {"grace/ratio", "grace/error/w", "grace/memory_norm"} <= set(events.Tags()["scalars"])
    assert [(e.step, e.value) for e in events.Scalars("grace/memory_norm")] == [(1, 3.0)]


class Wandb:
    """As a run of Weights & Biases counts: one more step at each call, unless one is given, which must not be earlier."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.metrics: list[tuple[str, str | None]] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, data: dict[str, Any]) -> None:
        self.rows.append(data)


def test_weights_and_biases_keeps_its_own_count_of_steps() -> None:
    training, run = begin(), Wandb()
    training.session.logs.add(run)
    step(training, 4.0, 3.0, 0.0, 0.0)
    assert run.metrics == [("grace/*", "grace/step")]
    assert run.rows[0]["grace/step"] == 1
    assert run.rows[0]["grace/memory_norm"] == 3


def test_the_real_library_of_weights_and_biases_keeps_what_it_is_told(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="pip install 'grace-dl[wandb]'")
    done = subprocess.run(
        [sys.executable, "-c", _OFFLINE], cwd=tmp_path, env={**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3", "3"], done.stdout
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    events = kept.read_bytes()
    assert all(key in events for key in (b"grace/sent_bytes", b"grace/memory_norm", b"grace/error/w", b"mine"))


_OFFLINE = """
import torch, wandb
import grace

model = torch.nn.Linear(64, 64, bias=False)
optimizer = grace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "topk:ratio=0.05", [("w", model.weight)])
run = wandb.init(project="mine", dir=".")
optimizer.handle.log(run, errors_every=1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    run.log({"loss": 1.0})
print(run.summary["grace/step"], optimizer.handle.stats.steps)
run.finish()
"""


def test_what_is_refused() -> None:
    training = begin()
    with pytest.raises(ConfigurationError, match="nothing to log to; legal: a SummaryWriter"):
        training.session.logs.add("runs/1")
    with pytest.raises(ConfigurationError, match="every=0"):
        training.session.logs.add(print, every=0)
    with pytest.raises(ConfigurationError, match="errors_every=-1"):
        training.session.logs.add(print, errors_every=-1)
