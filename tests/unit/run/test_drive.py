"""One worker's exchange over a transport: drive, Checked, Tracer and Timed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import AllGather, AllReduce, Collective, Exchange, Traffic
from grace.errors import RoundMismatch, TransportError
from grace.peer import Peer
from grace.run import Checked, Tracer, drive, simulate
from grace.run.simulate import answers
from grace.run.stats import Stats, Timed


class Loopback:
    """A network of one, that fails in round ``fail_at``."""

    rank, world = 0, 1

    def __init__(self, fail_at: int = -1):
        self.left = fail_at
        self.asked: list[Collective] = []

    def run(self, op: Collective) -> Tensor:
        if self.left == 0:
            raise TransportError("a worker died")
        self.left -= 1
        self.asked.append(op)
        return answers([op])[0]


class Threads:
    """A network of threads in this process."""

    def __init__(self, world: int):
        self.ops: list[Any] = [None] * world
        self.barrier = threading.Barrier(world, timeout=30)

    def member(self, rank: int) -> Any:
        hub = self

        class Member:
            world = len(hub.ops)

            def __init__(self) -> None:
                self.rank = rank

            def run(self, op: Collective) -> Tensor:
                hub.ops[rank] = op
                hub.barrier.wait()
                answer = answers(list(hub.ops))[rank]
                hub.barrier.wait()
                return answer

        return Member()


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


# ---- checked --------------------------------------------------------------------------------------------------------
def in_threads(world: int, job: Any) -> list[Any]:
    hub, results = Threads(world), [None] * world

    def work(rank: int) -> None:
        try:
            results[rank] = job(hub.member(rank), rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_checked_lets_pass_what_agrees():
    results = in_threads(3, lambda transport, rank: drive(two_rounds(), Checked(transport)))
    assert results == ["[[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]"] * 3


def test_checked_names_what_differs_on_every_rank():
    def job(transport: Any, rank: int) -> Tensor:
        checked = Checked(transport)
        checked.run(AllReduce(torch.ones(2)))
        return checked.run(AllReduce(torch.ones(2 + rank)))

    for result in in_threads(2, job):
        assert isinstance(result, RoundMismatch)
        assert "ranks [0]: collective 2: AllReduce(mean, float32, (2,))" in str(result)
        assert "ranks [1]: collective 2: AllReduce(mean, float32, (3,))" in str(result)


def test_checked_is_like_its_transport():
    checked = Checked(Loopback())
    assert (checked.rank, checked.world) == (0, 1)


# ---- traced and timed -----------------------------------------------------------------------------------------------
def test_the_tracer_counts_and_changes_nothing():
    xs = [torch.arange(40.0) * (rank + 1) for rank in range(4)]
    method = grace.method("topk:ratio=0.1,memory=none")

    def runs() -> list[Exchange[Any]]:
        return [method.exchange(x.clone(), None, Peer(r, 4)) for r, x in enumerate(xs)]

    tracers = [Tracer(rank, 4) for rank in range(4)]
    plain = simulate(runs())
    traced = simulate([tracer.traced(run) for tracer, run in zip(tracers, runs(), strict=True)])
    assert all(torch.equal(a.mean, b.mean) for a, b in zip(plain, traced, strict=True))
    wire = 4 + 4 * 4 + 3 + 1  # status; 4 values; 4 indices of 6 bits; padding
    assert [tracer.traffic for tracer in tracers] == [Traffic(1, 3 * wire, 3 * wire)] * 4


def test_the_tracer_passes_errors_on():
    tracer = Tracer(0, 1)
    run = tracer.traced(two_rounds())
    next(run)
    with pytest.raises(TransportError):
        run.throw(TransportError("x"))
    assert tracer.traffic.rounds == 1


def test_timed_counts_failures_too():
    timed = Timed(Loopback(0))
    with pytest.raises(TransportError):
        timed.run(AllReduce(torch.ones(1)))
    assert timed.seconds > 0


def test_stats():
    stats = Stats(4, steps=2, traffic=Traffic(6, 100, 120), dense_bytes=400)
    assert stats.bytes_per_step == 50
    assert stats.ratio == 2 * 3 / 4 * 400 / 100
    assert Stats(1).ratio == 1.0
    assert stats.as_dict()["rounds_per_step"] == 3
