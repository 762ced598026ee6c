"""The door of decoupled learners: what it refuses before anything is connected."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("grpc")

import grace
from grace.adapters.taken import release, take
from grace.errors import ConfigurationError

Made = tuple[nn.Module, torch.optim.Optimizer]


class DTensor(torch.Tensor):
    """Known by its name, as fully_shard's is."""


def made(net: nn.Module | None = None) -> Made:
    net = net or nn.Linear(3, 2)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def attach(net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return grace.decoupled(net, optimizer, "127.0.0.1:9", name="a", every=1, timeout=0.0)


@pytest.fixture
def attached() -> Iterator[tuple[Made, Any]]:
    pair = made()
    with pytest.warns(grace.UnexchangedWarning):
        handle = attach(*pair)
    yield pair, handle
    handle.detach()


def test_parameters_under_fully_shard_are_refused():
    net = nn.Linear(3, 2)
    net.weight = nn.Parameter(torch.ones(2, 3).as_subclass(DTensor))
    with pytest.raises(ConfigurationError, match="'weight' is a DTensor"):
        attach(*made(net))


def test_parameters_that_are_exchanged_already_are_refused_until_the_other_detaches(attached: tuple[Made, Any]):
    pair, handle = attached
    with pytest.raises(ConfigurationError, match="'weight' is already trained by a decoupled learner"):
        attach(*pair)
    with pytest.raises(ConfigurationError, match="'weight' is already trained by a decoupled learner"):
        grace.local(*pair, "none", every=1)
    handle.detach()
    other = nn.Identity()  # whoever
    take(other, pair[0].parameters(), "is another's")
    with pytest.raises(ConfigurationError, match="'weight' is another's"):
        attach(*pair)
    release(other)
    with pytest.warns(grace.UnexchangedWarning):
        attach(*pair).detach()


def test_tokens_per_step_are_checked_when_they_change(attached: tuple[Made, Any]):
    _, handle = attached
    handle.tokens_per_step = 7
    for value in (0, -1, 1.5, True):
        with pytest.raises(ConfigurationError, match="tokens_per_step"):
            handle.tokens_per_step = value
    assert handle.tokens_per_step == 7


def test_credentials_that_are_none_are_refused_before_a_thread_begins():
    net, optimizer = made()
    threads = set(threading.enumerate())
    with pytest.raises(ConfigurationError, match=r"credentials='secret'; legal: grpc\.ChannelCredentials"):
        grace.decoupled(net, optimizer, "127.0.0.1:9", name="a", every=1, timeout=0.0, credentials="secret")
    optimizer.register_step_post_hook = None  # type: ignore[assignment,method-assign]
    with pytest.raises(TypeError):
        attach(net, optimizer)
    assert {thread for thread in threading.enumerate() if thread.name == "grace-syncer-link"} <= threads
    del optimizer.register_step_post_hook
    with pytest.warns(grace.UnexchangedWarning):
        attach(net, optimizer).detach()
