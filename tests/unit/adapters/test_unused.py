"""Parameters that no rank has used: who says what, and who looks at the answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import grace
from grace.adapters.unused import Unused
from grace.errors import ConfigurationError
from grace.flags.capturing import pretend_capturing

NAMES = ("a", "b", "c", "d")


def make(gives: Any = "none") -> Unused:
    return Unused({name: nn.Parameter(torch.zeros(2), requires_grad=name != "d") for name in NAMES}, gives)


def test_flags_say_what_a_rank_has_and_the_answer_what_all_lack() -> None:
    unused = make()
    for name in "bcd":
        unused.lack(name)
    flags = unused.flags()
    assert flags is not None
    assert flags.tolist() == [1, 0, 0, 0]
    flags[2] = 1  # another rank has it
    assert unused.find(agreed=True) == ["b", "d"]
    assert unused.find(agreed=False) == ["d"], "as long as nothing is agreed on, what is frozen"
    unused.begin()
    assert unused.find(agreed=True) == []


def test_who_has_all_gradients_does_not_look() -> None:
    unused = make()
    flags = unused.flags()
    assert flags is not None
    flags.zero_()
    assert unused.find(agreed=True) == []


def test_nobody_is_asked_for_zeros_or_in_a_capture() -> None:
    unused = make("zeros")
    unused.lack("b")
    unused.lack("d")
    assert unused.flags() is None
    assert unused.find(agreed=True) == ["d"]
    unused = make()
    unused.lack("b")
    with pretend_capturing():
        assert unused.flags() is None
    assert unused.find(agreed=True) == []


def test_what_is_legal() -> None:
    with pytest.raises(ConfigurationError, match=r"unused='mean'.*legal: 'none' or 'zeros'"):
        make("mean")


def test_alone_too() -> None:
    net = nn.ModuleDict({"a": nn.Linear(40, 40), "rare": nn.Linear(40, 40)})
    plain = torch.optim.AdamW(net.parameters(), lr=0.1)
    optimizer: Any = grace.DistributedOptimizer(plain, "topk", net.named_parameters(), transport="alone")
    before = net["rare"].weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        net["a"](torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
    assert net["rare"].weight.grad is None
    assert torch.equal(net["rare"].weight, before)
    optimizer.handle.detach()
