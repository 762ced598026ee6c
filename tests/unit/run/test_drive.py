"""A worker's exchange over a network."""

from __future__ import annotations

import pytest
import torch

from grace.collectives import AllGather, AllReduce, Exchange
from grace.errors import TransportError
from grace.run import drive
from tests.unit.networks import Loopback


def two_rounds() -> Exchange[str]:
    first = yield AllReduce(torch.ones(2))
    second = yield AllGather(first * 3)
    return f"{second.tolist()}"


def test_drive_returns_the_result():
    assert drive(two_rounds(), Loopback()) == "[[3.0, 3.0]]"


def test_an_exchange_without_rounds():
    def nothing() -> Exchange[int]:
        return 3
        yield

    assert drive(nothing(), Loopback()) == 3


@pytest.mark.parametrize("fail_at", [0, 1])
def test_an_error_passes_through_the_exchange(fail_at: int):
    cleaned = []

    def careful() -> Exchange[str]:
        try:
            return (yield from two_rounds())
        finally:
            cleaned.append(True)

    with pytest.raises(TransportError, match="a worker died"):
        drive(careful(), Loopback(fail_at))
    assert cleaned == [True]


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_exchange_cannot_swallow_a_failure(goes_on: bool):
    def stubborn() -> Exchange[str]:
        try:
            yield AllReduce(torch.ones(1))
        except TransportError:
            if goes_on:
                yield AllReduce(torch.ones(1))
        return "as if nothing had happened"

    with pytest.raises(TransportError, match="a worker died"):
        drive(stubborn(), Loopback(0))


def test_an_exchange_may_say_it_in_its_own_words():
    def translating() -> Exchange[None]:
        try:
            yield AllReduce(torch.ones(1))
        except TransportError as error:
            raise RuntimeError("while averaging") from error

    with pytest.raises(RuntimeError, match="while averaging"):
        drive(translating(), Loopback(0))
