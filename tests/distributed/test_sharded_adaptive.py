"""Bits of each layer of a model under fully_shard, under one budget: in real processes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import grace
from grace.auto.adaptive import Adapting
from grace.auto.allocate import within_cost
from grace.predict.probe import Probe
from grace.registry.adaptive import KNOBS
from tests.distributed.processes import Pool
from tests.distributed.sharded_models import Given, four, fully_shard, gradients_of, mesh_of, pytestmark, three

__all__ = ["four", "pytestmark", "three"]

NAMES = ("wide", "short")
SIZES = {"wide": (50, 30), "short": (2, 700)}


def uneven(rank: int, step: int) -> dict[str, Tensor]:
    """Uneven shards: of two, the first has the larger part of ``short``, and the second that of ``wide``, which is less."""
    gradients = gradients_of(rank, step)
    gradients["wide"][25:] *= 30
    gradients["short"][:1] *= 100
    return gradients


def parts_of(kind: str, world: int, x: Tensor) -> list[Tensor]:
    """Parts of a parameter that are compressed by themselves: rows for their owners, or shards."""
    parts = world if kind == "fsdp" else 2
    width = -(-x.shape[0] // parts) * (x.numel() // x.shape[0])
    padded = torch.nn.functional.pad(x.flatten(), (0, parts * width - x.numel()))
    return list(padded.view(parts, width))


def as_written_down(kind: str, world: int, choices: tuple[str, ...], cost: Any, budget: float, step: int) -> list[int]:
    """The choices by what all ranks lose of all parts, squared and added up."""
    error = []
    for name in NAMES:
        lost = dict.fromkeys(choices, 0.0)
        for rank in range(world):
            for part in parts_of(kind, world, uneven(rank, step)[name]):
                for text in choices:
                    kept = max(1, round(float(text.partition("=")[2]) * part.numel()))
                    left = part.clone()
                    left[part.abs().topk(kept).indices] = 0.0
                    lost[text] += float(left.double().square().sum())
        error.append(list(lost.values()))
    choice = within_cost(cost, error, budget)
    assert choice is not None
    return choice


def trained(rank: int, world: int, kind: str, steps: int, alone: bool = False) -> dict[str, Any]:
    net = Given()
    fully_shard(net, mesh=mesh_of(kind))
    adaptive = grace.Policy.adaptive("topk", budget=3.0, every=3)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    handle = grace.attach(net, adaptive)
    driver = handle._driver  # type: ignore[attr-defined]
    assert isinstance(driver, Adapting)
    assert driver.names == list(NAMES)
    chosen = []

    def make(network: Any, cores: float, beside: Any = None, **how: Any) -> Probe:
        return Probe(network, cores, beside=None if alone else beside, **how)

    with mock.patch("grace.auto.adaptive.Probe", make):
        for step in range(steps):
            optimizer.zero_grad()
            net(uneven(rank, step)).backward()
            optimizer.step()
            if step % 3 == 1 and not alone:
                budget = 3.0 * sum(driver.numbers)
                assert driver.choice == as_written_down(kind, world, adaptive.choices, driver.cost, budget, step)
            chosen.append(tuple(driver.choice))
    sent = handle.stats.traffic.sent
    explained = handle.explain()  # type: ignore[attr-defined]
    methods = handle._session.methods()
    handle.switch("none")
    for step in range(steps, steps + 1):
        optimizer.zero_grad()
        net(uneven(rank, step)).backward()
        optimizer.step()
    left = handle._session.worker.memory_norm()
    handle.detach()
    for name, p in net.named_parameters():
        computed = sum(uneven(r, step)[name] for r in range(world) for step in range(steps + 1)) / world
        torch.testing.assert_close(-p.detach().full_tensor(), computed, atol=2e-3, rtol=1e-4)
    return {
        "chosen": chosen,
        "bits": explained.bits,
        "methods": methods,
        "sent": sent,
        "left": left,
        "text": str(explained),
    }


@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_all_ranks_choose_what_all_parts_lose_least_by_and_nothing_is_lost(four: Pool, kind: str) -> None:
    told = four.run(trained, kind, 8)
    first = told[0]
    assert len(set(first["chosen"])) > 1, "something was chosen"
    values = KNOBS["topk"][1]
    wide, short = (values[k] for k in first["chosen"][-1])
    assert short > wide
    for rank in told:
        assert rank["chosen"] == first["chosen"]
        assert rank["methods"] == first["methods"]
        assert rank["left"] == 0
    assert first["bits"] <= 3.0
    assert "topk:ratio=" in first["text"]


def test_on_three_where_one_has_no_part_of_a_layer(three: Pool) -> None:
    first, *others = three.run(trained, "fsdp", 5)
    assert all(rank["chosen"] == first["chosen"] for rank in others)


def decide_alone(rank: int, world: int) -> Any:
    return trained(rank, world, "hsdp", 5, alone=True)["chosen"]


def test_lines_that_decide_alone_are_caught(four: Pool) -> None:
    told = four.run(decide_alone)
    assert told[0] != told[1], "they have other shards"
