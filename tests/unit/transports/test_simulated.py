"""Transports of simulated workers: what one says and sends before the others are there."""

from __future__ import annotations

import pytest
import torch

from grace.collectives import AllReduce, Broadcast
from grace.errors import ConfigurationError, FingerprintMismatch, TransportError
from grace.transports.agreement import agree
from grace.transports.simulated import simulated


def test_each_is_compared_with_those_before() -> None:
    first, second, third = simulated(3)
    for worker in (first, second):
        agree({"lr": "0.1"}, worker)
        agree({"steps": "3"}, worker)
    agree({"lr": "0.1"}, third)
    with pytest.raises(FingerprintMismatch, match=r"steps: 3 on ranks \[0, 1\], 4 on ranks \[2\]"):
        agree({"steps": "4"}, third)


def test_rank_0_gives_what_it_has_in_order() -> None:
    first, second = simulated(2)
    sent = [torch.tensor([1.0]), torch.tensor([2.0])]
    for x in sent:
        assert torch.equal(first.run(Broadcast(x, 0)), x)
    sent[0].zero_()
    assert [second.run(Broadcast(torch.zeros(1), 0)).item() for _ in range(2)] == [1.0, 2.0]
    with pytest.raises(TransportError, match="before rank 0"):
        second.run(Broadcast(torch.zeros(1), 0))


def test_it_answers_nothing_else() -> None:
    (worker,) = simulated(1)
    for op in (AllReduce(torch.zeros(2)), Broadcast(torch.zeros(2), 1)):
        with pytest.raises(TransportError, match=r"asks for .* by itself; run the workers together"):
            worker.run(op)
    with pytest.raises(ConfigurationError, match="world=0"):
        simulated(0)
