"""Constructors that fail after something was opened: it is closed, since nobody has the object that could be closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace
from grace.collectives import Collective
from tests.unit.networks import Loopback


class Pair(Loopback):
    """A network of two, of which the other one says the same as this one."""

    world = 2

    def run(self, op: Collective) -> Tensor:
        return op.buf.clone()

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        return [text] * 2


def outer(net: nn.Module, inner: torch.optim.Optimizer) -> Any:
    return grace.outer(net, inner, "none", every=4, delay=1)


def gossip(net: nn.Module, inner: torch.optim.Optimizer) -> Any:
    return grace.gossip(net, inner, "topk:ratio=0.2", overlap=True)


def optimizer(net: nn.Module, inner: torch.optim.Optimizer) -> Any:
    return grace.optim.OneBitAdam(net.named_parameters(), freeze_step=3)


AT = [  # what fails, in the order in which it happens
    (outer, "grace.adapters.outer.loop", "grace.adapters.outer.loop._refuse_votes"),
    (outer, "grace.adapters.outer.loop", "grace.run.session.form_groups"),
    (outer, "grace.adapters.outer.loop", "grace.run.session.Worker"),
    (outer, "grace.adapters.outer.loop", "grace.adapters.outer.state.OuterState.begin"),
    (outer, "grace.adapters.outer.loop", "grace.adapters.outer.loop.OuterLoop._check_optimizer"),
    (gossip, "grace.gossip.handle", "grace.gossip.handle.with_graph"),
    (gossip, "grace.gossip.handle", "grace.run.session.form_groups"),
    (gossip, "grace.gossip.handle", "grace.gossip.worker.GossipWorker.begin"),
    (optimizer, "grace.optim.base", "grace.run.session.form_groups"),
    (optimizer, "grace.optim.base", "grace.optim.base.fill_buckets"),
    (optimizer, "grace.optim.base", "grace.optim.onebit_adam.OneBitAdam._begin"),
]


@pytest.mark.parametrize(("door", "module", "place"), AT, ids=[place.partition(".")[2] for *_, place in AT])
def test_what_was_opened_is_closed(
    monkeypatch: pytest.MonkeyPatch, door: Callable[..., Any], module: str, place: str
) -> None:
    network, threads = Pair(), set(threading.enumerate())
    monkeypatch.setattr(f"{module}.transport_between", lambda group, spec: network)

    def fail(*args: Any, **named: Any) -> None:
        raise ZeroDivisionError(place)

    net = nn.Linear(40, 40)
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    with monkeypatch.context() as patched:
        patched.setattr(place, fail)
        with pytest.raises(ZeroDivisionError, match=place):
            door(net, inner)
    assert network.closed
    assert set(threading.enumerate()) == threads
    assert not inner._optimizer_step_post_hooks
    network = Pair()
    made = door(net, inner)  # nobody has taken the parameters
    assert not network.closed
    (made.close if hasattr(made, "close") else made.detach)()
    assert network.closed
    assert set(threading.enumerate()) == threads
