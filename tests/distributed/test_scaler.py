"""Loss scaling: memories are in units without the scale, so that it may change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace
from grace.errors import ConfigurationError, FingerprintMismatch
from tests.distributed.ddp_models import assert_replicas_agree, batch, model, weights
from tests.distributed.processes import Pool

SPECS = ["topk:ratio=0.05", "efsignsgd", "powersgd:rank=2", "qsgd:bits=4", "topk:ratio=0.05,memory=ef21", "none"]


class Outcome(torch.amp.GradScaler):
    """A scaler whose scales are told."""

    def __init__(self, scales: list[float]):
        super().__init__("cpu", init_scale=scales[0])
        self.scales = list(scales)

    def next(self) -> None:
        self.update(self.scales.pop(0))


def applied(rank: int, spec: str, scales: list[float] | None, granularity: str) -> Tensor:
    net = model()
    scaler = None if scales is None else Outcome(scales)
    handle = grace.attach(net, spec, scaler=scaler, granularity=granularity)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(6):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.next()
    handle.detach()
    return weights(net)


def any_scales(rank: int, world: int, spec: str, granularity: str) -> None:
    expected = applied(rank, spec, None, granularity)
    for scales in ([2.0**16, 2.0**15, 2.0**17, 2.0**3, 1.0, 2.0**12], [0.5, 2.0**20, 2.0**5, 2.0**5, 4.0, 2.0**-3]):
        assert torch.equal(applied(rank, spec, scales, granularity), expected), scales


@pytest.mark.parametrize("spec", SPECS)
def test_scales_that_are_powers_of_two_change_no_bit(pair: Pool, spec: str) -> None:
    pair.run(any_scales, spec, "parameter")


def test_nor_do_they_for_the_model_as_one_tensor(pair: Pool) -> None:
    pair.run(any_scales, "topk:ratio=0.05", "model")


def overflow(rank: int, world: int) -> list[Any]:
    """An inf on one rank: all skip, all halve their scale, no memory changes, and what is owed keeps its worth."""
    net = model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    handle = grace.attach(net, "topk:ratio=0.05", scaler=scaler)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    told = []
    for step in range(4):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        before, states = weights(net), handle.state_dict()["states"]
        loss = nn.functional.cross_entropy(net(x), y)
        if step == 2 and rank == world - 1:
            net.module.hidden.weight.register_hook(lambda g: g * float("inf"))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        told.append(scaler.get_scale())
        if step == 2:
            assert torch.equal(weights(net), before), "the step should have been skipped"
            assert torch.equal(handle.state_dict()["states"]["hidden.weight"][0], states["hidden.weight"][0])
            break
        assert_replicas_agree(net, world)
    handle.detach()
    return told


def test_an_overflow_on_one_rank_is_skipped_by_all(pool: Pool) -> None:
    assert pool.run(overflow) == [[1024.0, 1024.0, 512.0]] * pool.world


def refused(rank: int, world: int) -> None:
    with pytest.raises(ConfigurationError, match=r"is float16.*autocast"):
        grace.attach(model(torch.float16), "topk", scaler=torch.amp.GradScaler("cpu"))
    scaler = torch.amp.GradScaler("cpu", growth_interval=100 + rank)
    with pytest.raises(FingerprintMismatch, match="scaler"):
        grace.attach(model(), "topk", scaler=scaler)


def test_scalers_that_cannot_be(pair: Pool) -> None:
    pair.run(refused)
