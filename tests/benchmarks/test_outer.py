"""Replicas that take turns in one process train as outer loops do between processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace
from benchmarks.outer import Loop, split, table
from grace_bench.tasks import Task
from tests.unit.networks import in_threads, returned

STEPS, WORKERS = 12, 3
LAYERS = {"0.weight": (64, 24), "0.bias": (64,), "2.weight": (6, 64), "2.bias": (6,)}


class Small(Task):
    """Two layers on random numbers, with SGD."""

    workers, steps, clip = WORKERS, STEPS, 0.0

    def load(self, root: Path | None) -> None:
        """There is nothing to load."""

    def model(self) -> nn.Module:
        net = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 6))
        draw = torch.Generator().manual_seed(1)  # the global one is that of all threads
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(0.4 * torch.rand(p.shape, generator=draw) - 0.2)
        return net

    def steps_per_epoch(self, world: int) -> int:
        return STEPS

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Any]:
        draw = torch.Generator().manual_seed(rank)
        while True:
            yield torch.randn(8, 24, generator=draw), torch.randint(0, 6, (8,), generator=draw)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def lr(self, step: int) -> float:
        return 0.1 / (1 + step)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"accuracy": 0.0}


def in_turns(text: str) -> dict[str, Tensor]:
    """Theta after all steps, by name."""
    loop = Loop(Small(), text, 0)
    for step in range(STEPS):
        loop.step(step)
    return loop._state.theta


def between_threads(text: str) -> dict[str, Tensor]:
    """The same of real loops."""

    def job(network: Any, rank: int) -> dict[str, Tensor]:
        task = Small()
        model = task.model()
        optimizer = task.optimizer(model)
        loop = grace.outer(model, optimizer, text, transport=network)
        batches = task.batches(rank, WORKERS, 0)
        for step in range(STEPS):
            optimizer.zero_grad()
            task.loss(model, next(batches)).backward()
            optimizer.param_groups[0]["lr"] = task.lr(step)
            optimizer.step()
        with loop.shared_model() as shared:
            return {name: p.detach().clone() for name, p in shared.named_parameters()}

    ends: list[dict[str, Tensor]] = returned(in_threads(WORKERS, job))
    return ends[0]


@pytest.mark.parametrize(
    "text",
    ["diloco:every=3", "sparseloco:every=2,lr=0.4", "streaming_diloco:every=4,fragments=2,delay=1",
     "post_local_sgd:every=4,warmup_steps=4"],
)  # fmt: skip
def test_replicas_in_turns_train_as_those_between_threads(text: str) -> None:
    alone, together = in_turns(text), between_threads(text)
    assert alone.keys() == together.keys() == LAYERS.keys()
    for name, theta in together.items():
        torch.testing.assert_close(alone[name], theta, rtol=1e-5, atol=1e-7)


def test_a_window_of_one_step_of_sgd_is_synchronous_training() -> None:
    averaged, synchronous = in_turns("local_sgd:every=1"), in_turns("sync")
    for name, theta in synchronous.items():
        torch.testing.assert_close(averaged[name], theta, rtol=1e-5, atol=1e-7)
    apart = in_turns("local_sgd:every=3")
    assert not torch.allclose(apart["0.weight"], synchronous["0.weight"], rtol=1e-5, atol=1e-7)


def test_bytes_are_those_of_the_warm_up_and_of_the_windows() -> None:
    loop = Loop(Small(), "post_local_sgd:every=4,warmup_steps=4", 0)
    for step in range(STEPS):
        loop.step(step)
    assert loop.sent == pytest.approx((4 + 2) * loop.all_reduce, rel=0.01)


def test_the_table_says_how_far_behind_each_loop_is() -> None:
    row = {"task": "t", "steps": 1000, "metric": "bits_per_byte", "better": "lower", "fewer bytes": 8.0}
    runs = [("sync", 2.0), ("diloco:every=8@2", 2.1), ("sync", 2.0), ("diloco:every=8@2", 2.1), ("sync", 4.0)]
    lines = table([{**row, "method": method, "final": final} for method, final in runs]).splitlines()
    assert lines[2:] == [
        "| t | 1,000 | `sync` | 2.000 |  | 8 | 3 |",
        "| t | 1,000 | `diloco:every=8@2` | 2.100 | 5.0 % | 8 | 2 |",
    ]
    loops = ["sync", "post_local_sgd:every=8,warmup_steps=3", "muloco"]
    assert split(",".join(loops)) == loops
