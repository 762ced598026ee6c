"""Exchanges as they are replayed: the mean to all, or of rows each to its owner."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grace.collectives import ReduceScatter, cost
from grace.contract.peer import Peer
from grace.predict.rates import NUMBERS, Rate, Rater
from grace.predict.ways import TO_ALL, ToOwners, Way
from grace.registry import method as make_method
from grace.registry.policy import Policy
from grace.run.simulate import simulate
from grace.run.worker import Worker

W = 3


def exchanged(way: Way, text: str, shape: tuple[int, int] = (6, 8)) -> list[torch.Tensor]:
    """Tensors of each worker afterwards."""
    policy = Policy([("*", text)])
    xs = [torch.full(shape, float(rank + 1)) for rank in range(W)]
    runs = [
        way.exchange(Worker(policy, rank, W), policy.method_for("weight", x, 0), {"weight": x})
        for rank, x in enumerate(xs)
    ]
    simulate(runs)
    return xs


@pytest.mark.parametrize("text", ["none", "bf16", "qsgd:bits=8"])
def test_an_owner_gets_the_sum_of_its_row_alone(text: str) -> None:
    for rank, x in enumerate(exchanged(ToOwners(), text)):
        rows = x.view(W, -1)
        for owner in range(W):
            torch.testing.assert_close(rows[owner], torch.full((16,), 6.0 if owner == rank else rank + 1.0))


def test_all_get_the_mean() -> None:
    assert all(bool((x == 2).all()) for x in exchanged(TO_ALL, "none"))


@pytest.mark.parametrize(
    ("way", "text", "kinds"),
    [
        (TO_ALL, "none", ["AllReduce"]),
        (TO_ALL, "topk", ["AllGather"]),
        (ToOwners(), "none", ["ReduceScatter"]),
        (ToOwners(dtype=torch.bfloat16), "none", ["ReduceScatter in 16 bits"]),
        (ToOwners(plain=False), "none", ["AllToAll"]),
        (ToOwners(), "bf16", ["AllToAll", "AllReduce"]),  # whether all rows are finite
        (ToOwners(), "topk", ["AllToAll"]),
    ],
)
def test_what_is_replayed_is_what_travels(way: Way, text: str, kinds: list[str]) -> None:
    sample = Rater(samples=1, warm=0, way=way).run(text, W, NUMBERS[0])
    assert [kind for kind, _ in sample.moved] == kinds


def test_bytes_are_those_that_are_declared() -> None:
    rows = torch.empty(W, 2000, device="meta")
    way, peer = ToOwners(), Peer(0, W)
    assert way.traffic(make_method("none"), (60, 100), peer) == cost(ReduceScatter(rows), 0, W)
    topk = make_method("topk")
    assert way.traffic(topk, (60, 100), peer) == topk.scatter_traffic(rows, peer)
    assert Rate(W, (), ()).scale_to(topk, [(1000, 1000)], way) == pytest.approx(1, rel=1e-3)


def test_methods_that_exchange_alike_are_known() -> None:
    def same(way: Way, first: str, second: str) -> bool:
        return way.likeness(make_method(first)) == way.likeness(make_method(second))

    assert same(ToOwners(), "natural", "natural:communicator=scatterreduce")
    assert not same(TO_ALL, "natural", "natural:communicator=scatterreduce")
    for other in ("natural:memory=residual", "qsgd:bits=4", "fp8"):
        assert not same(ToOwners(), "natural", other)


@pytest.mark.parametrize(("text", "why"), [("powersgd", "powersgd has an exchange of its own"), ("topk", "")])
def test_what_cannot_scatter_is_refused(text: str, why: str) -> None:
    method: Any = make_method(text)
    assert ToOwners().refuse(method).startswith(why)
    assert bool(ToOwners().refuse(method)) == bool(why)
    assert TO_ALL.refuse(method) == ""


def test_a_row_is_compressed_by_itself() -> None:
    """All of one row is large: of both together it is kept whole, and by itself each loses its smaller half."""
    x, half, peer = torch.tensor([[3.0, 4.0], [0.3, 0.4]]), make_method("topk:ratio=0.5"), Peer(0, 2)
    lost = ToOwners().lost(half, x, peer)
    assert lost == pytest.approx(0.6)
    assert TO_ALL.lost(half, x, peer) == pytest.approx((0.25 / 25.25) ** 0.5)
    assert ToOwners().lost(half, torch.zeros(2, 4), peer) == 0.0
    assert ToOwners().lost(half, torch.full((2, 4), torch.nan), peer) is None


def test_wires_are_of_all_rows() -> None:
    four = make_method("qsgd:bits=4")
    assert TO_ALL.wire_bits(four, (100, 60), 8) == pytest.approx(4 * 6000, rel=0.05)
    assert ToOwners().wire_bits(four, (100, 60), 1) == pytest.approx(4 * 6000, rel=0.05)
    rows = four.scatter_traffic(torch.empty(8, 750, device="meta"), Peer(0, 8))
    assert rows is not None
    assert ToOwners().wire_bits(four, (100, 60), 8) == 8 * rows.sent * 8 / 7
