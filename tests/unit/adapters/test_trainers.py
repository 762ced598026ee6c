"""Callbacks for other libraries' trainers: what one owes from one training to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grace.adapters.trainers import AttachingCallback
from grace.errors import GraceWarning


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def begin(callback: AttachingCallback, net: nn.Module, **options: Any) -> DistributedDataParallel:
    """As a trainer does: it wraps the module anew in each training."""
    ddp = DistributedDataParallel(net)
    callback._attach(ddp, "", None, None, **options)
    return ddp


def train(callback: AttachingCallback, net: nn.Module, **options: Any) -> dict[str, Tensor]:
    ddp = begin(callback, net, **options)
    for _ in range(2):
        ddp(torch.randn(8, 40)).square().sum().backward()
    return debts_of(callback)


def debts_of(callback: AttachingCallback) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in callback.handle._session.worker.state.debts().items()}  # type: ignore[union-attr]


@pytest.mark.parametrize("detached", [False, True])  # as Lightning leaves it, and as transformers does
def test_a_second_training_of_a_module_goes_on_with_its_memories(detached: bool) -> None:
    callback, net = AttachingCallback("topk:ratio=0.1"), nn.Linear(40, 40, bias=False)
    owed = train(callback, net)
    assert bool(owed["weight"].any())
    if detached:
        callback._detach()
    begin(callback, net)
    assert torch.equal(debts_of(callback)["weight"], owed["weight"])
    assert callback.handle is not None
    assert callback.handle._session.worker.step == 2


def test_another_module_and_a_checkpoint_owe_nothing_of_it() -> None:
    callback, net = AttachingCallback("topk:ratio=0.1"), nn.Linear(40, 40, bias=False)
    train(callback, net)
    begin(callback, nn.Linear(40, 40, bias=False))
    assert not debts_of(callback)
    train(callback, net)
    begin(callback, net, resumes=True)
    assert not debts_of(callback)


def test_what_does_not_fit_any_more_is_told() -> None:
    callback, net = AttachingCallback("topk:ratio=0.1"), nn.Linear(40, 40, bias=False)
    train(callback, net)
    assert callback.handle is not None
    callback.handle.switch("qsgd")
    with pytest.warns(GraceWarning, match="memories of the last training start empty: the state was saved under"):
        begin(callback, net)
