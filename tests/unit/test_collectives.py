"""Costs of collectives, and how they are told apart."""

from __future__ import annotations

import pytest
import torch

from grace.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Permute,
    ReduceScatter,
    Traffic,
    cost,
    ring_bytes,
    signature,
    watch,
)

BUF = torch.zeros(4, 6, dtype=torch.float16)  # 48 bytes, 4 workers


@pytest.mark.parametrize(
    ("op", "rank", "expected"),
    [
        (AllReduce(BUF), 0, Traffic(1, 72, 72)),
        (AllReduce(BUF, "max"), 3, Traffic(1, 72, 72)),
        (AllGather(BUF), 1, Traffic(1, 144, 144)),
        (AllToAll(BUF), 1, Traffic(1, 36, 36)),
        (ReduceScatter(BUF), 2, Traffic(1, 36, 36)),
        (Broadcast(BUF, 2), 2, Traffic(1, 144, 0)),
        (Broadcast(BUF, 2), 0, Traffic(1, 0, 48)),
        (Permute(BUF, ((0, 3),)), 0, Traffic(1, 48, 0)),
        (Permute(BUF, ((0, 3),)), 3, Traffic(1, 0, 48)),
        (Permute(BUF, ((0, 3),)), 1, Traffic(1, 0, 0)),
        (Permute(BUF, ((1, 1), (0, 2), (2, 0))), 1, Traffic(1, 0, 0)),
        (Permute(BUF, ((1, 1), (0, 2), (2, 0))), 2, Traffic(1, 48, 48)),
    ],
)
def test_cost(op: Collective, rank: int, expected: Traffic):
    assert cost(op, rank, 4) == expected


@pytest.mark.parametrize("op", [AllReduce(BUF), AllGather(BUF), Broadcast(BUF, 0)])
def test_one_worker_moves_nothing(op: Collective):
    assert cost(op, 0, 1) == Traffic(1, 0, 0)


def test_a_ring_rounds_up():
    assert cost(AllReduce(torch.zeros(1)), 0, 3) == Traffic(1, 6, 6)  # 4 bytes * 4/3 = 5.33


def test_traffic_adds_up():
    assert Traffic(1, 2, 3) + Traffic(10, 20, 30) == Traffic(11, 22, 33)
    assert Traffic() == Traffic(0, 0, 0)


def test_signatures_tell_what_ranks_must_agree_on():
    assert signature(AllReduce(BUF, "sum")) == "AllReduce(sum, float16, (24,))"
    assert signature(Broadcast(BUF, 1)) == "Broadcast(root 1, float16, (4, 6))"
    assert signature(Permute(BUF, ((0, 1),))) == "Permute(((0, 1),), float16, (4, 6))"
    assert signature(AllReduce(BUF, "sum")) != signature(AllReduce(BUF, "mean"))
    assert signature(AllGather(BUF)) != signature(AllGather(BUF.float()))
    assert signature(AllGather(BUF)) != signature(AllGather(BUF[1:]))


def test_a_ring_of_one_moves_nothing_and_a_large_one_twice_the_buffer():
    assert [ring_bytes(1000, world) for world in (1, 2, 4)] == [0, 1000, 1500]
    assert ring_bytes(1000, 1_000_000) == pytest.approx(2000, rel=1e-5)


def test_what_an_exchange_asks_and_hears_can_be_changed_and_an_error_there_is_raised_inside():
    def exchange():
        try:
            return (yield AllReduce(BUF))
        except ValueError:
            return "caught"

    def refuse(op):
        raise ValueError

    asked = watch(exchange(), lambda op: AllGather(op.buf), lambda op, answer: (op, answer))
    assert isinstance(next(asked), AllGather)
    with pytest.raises(StopIteration) as end:
        asked.send("answer")
    assert end.value.value == (AllReduce(BUF), "answer")
    with pytest.raises(StopIteration) as end:
        next(watch(exchange(), refuse))
    assert end.value.value == "caught"
