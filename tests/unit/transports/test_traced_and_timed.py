"""Traffic and time of an exchange."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import grace
from grace.collectives import AllGather, AllReduce, Exchange, Traffic
from grace.contract.peer import Peer
from grace.errors import TransportError
from grace.run import Checked, Tracer, simulate
from grace.transports.timed import Timed
from tests.unit.networks import Loopback


def two_rounds() -> Exchange[str]:
    first = yield AllReduce(torch.ones(2))
    second = yield AllGather(first * 3)
    return f"{second.tolist()}"


def test_the_tracer_counts_and_changes_nothing():
    xs = [torch.arange(40.0) * (rank + 1) for rank in range(4)]
    method = grace.method("topk:ratio=0.1,memory=none")

    def runs() -> list[Exchange[Any]]:
        return [method.exchange(x.clone(), None, Peer(r, 4)) for r, x in enumerate(xs)]

    tracers = [Tracer(rank, 4) for rank in range(4)]
    plain = simulate(runs())
    traced = simulate([tracer.trace(run) for tracer, run in zip(tracers, runs(), strict=True)])
    assert all(torch.equal(a.mean, b.mean) for a, b in zip(plain, traced, strict=True))
    wire = 4 + 4 * 4 + 3 + 1  # status; 4 values; 4 indices of 6 bits; padding
    assert [tracer.traffic for tracer in tracers] == [Traffic(1, 3 * wire, 3 * wire)] * 4


def test_the_tracer_passes_errors_on():
    tracer = Tracer(0, 1)
    run = tracer.trace(two_rounds())
    next(run)
    with pytest.raises(TransportError):
        run.throw(TransportError("x"))
    assert tracer.traffic.rounds == 1


def test_timed_counts_failures_too():
    timed = Timed(Loopback(0))
    with pytest.raises(TransportError):
        timed.run(AllReduce(torch.ones(1)))
    assert timed.seconds > 0


@pytest.mark.parametrize("wrapper", [Timed, Checked])
def test_wrappers_pass_on_what_is_not_theirs(wrapper: Any):
    network = Loopback()
    wrapped, error = wrapper(network), KeyError("x")
    assert wrapped.all_gather_text("me", seconds=1.0) == ["me"]
    wrapped.close(error)
    assert network.error is error
