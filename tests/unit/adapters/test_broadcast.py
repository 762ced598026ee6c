"""Objects of one rank for all: numpy's numbers are numbers, and what is refused is named."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import grace
from grace.errors import ConfigurationError


class Mine:
    def __repr__(self) -> str:
        return "Mine()"


def test_a_learning_rate_of_numpy() -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * np.cos(0.5))
    grace.broadcast_optimizer_state(optimizer, transport="alone")
    lr = optimizer.param_groups[0]["lr"]
    assert type(lr) is float
    assert lr == 0.1 * np.cos(0.5)


@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(3), np.bool_(True), np.str_("a")])
def test_numbers_of_numpy_within_containers(number: Any) -> None:
    given = OrderedDict(a=[number, (number, None)], x=torch.ones(2))
    told = grace.broadcast_object(given, transport="alone")
    assert type(told) is OrderedDict
    assert told["a"] == [number.item(), (number.item(), None)]
    assert type(told["a"][0]) is type(number.item())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": [{"lr": Mine()}]}, r"\['groups'\]\[0\]\['lr'\] is .*Mine, Mine\(\); make a number"),
        (Mine(), "it is .*Mine"),
        ([1, lambda: 0], r"\[1\] is function"),
    ],
)
def test_anything_else_is_named(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        grace.broadcast_object(given, transport="alone")
    assert "checkpoint" not in str(caught.value)
