"""Laying out a transport: which can be divided, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grace.errors import ConfigurationError
from grace.grid import Grid
from grace.run.session import Session
from grace.transports.alone import Alone
from grace.transports.base import find_axes
from grace.transports.grid import GridTransport, lay_out
from tests.unit.networks import Loopback, in_threads


def test_without_axes_it_stays_as_it_is() -> None:
    alone = Alone()
    assert lay_out(alone, {}) is alone


def test_a_grid_that_has_the_axes_stays_as_it_is() -> None:
    sizes = {"machines": 1, "machine": 1}
    grid = GridTransport(Alone(), Grid(sizes), {axis: Alone() for axis in sizes})
    assert lay_out(grid, sizes) is grid
    with pytest.raises(ConfigurationError, match=r"the transport's grid is .* where the method takes"):
        lay_out(grid, {"machines": 1})


def test_one_alone_is_a_machine_of_one() -> None:
    session = Session({"w": torch.empty(40, 40)}, "topk:ratio=0.1,machine=1", Alone())
    x = torch.randn(40, 40)
    assert int((session.exchange({"w": x})["w"] != 0).sum()) == 160
    assert set(session.worker.axes) == {"machines", "machine"}


def test_a_transport_that_cannot_be_divided_is_refused_and_closed() -> None:
    network = Loopback()
    with pytest.raises(ConfigurationError, match="cannot be divided among machines; legal: torch's process groups"):
        lay_out(network, {"machines": 1, "machine": 1})
    assert network.closed

    def job(member: Any, rank: int) -> Any:
        return Session({"w": torch.empty(40, 40)}, "topk:machine=2", member)

    assert all(isinstance(result, ConfigurationError) for result in in_threads(2, job))


def test_an_axis_that_has_been_laid_out_is_found() -> None:
    assert find_axes(lay_out(Alone(), {"machines": 1, "machine": 1})) == {"machines": (0, 1), "machine": (0, 1)}
