"""Grids of ranks, and exchanges along an axis."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import (
    AllGather,
    AllReduce,
    Broadcast,
    Exchange,
    Permute,
    ReduceScatter,
    Traffic,
    along,
    signature,
)
from grace.contract.peer import Peer
from grace.contract.together import together
from grace.errors import CompositionError, ConfigurationError, RoundMismatch
from grace.grid import Grid
from grace.run import Tracer, simulate

GRID = Grid({"machines": 2, "machine": 3})


def test_every_rank_is_on_one_line_of_each_axis():
    assert GRID.world == 6
    assert [GRID.place(rank)["machine"][0] for rank in range(6)] == [0, 1, 2, 0, 1, 2]
    assert GRID.lines("machine") == [(0, 1, 2), (3, 4, 5)]
    assert GRID.lines("machines") == [(0, 3), (1, 4), (2, 5)]
    for axis in GRID.sizes:
        for rank in range(6):
            assert GRID.line(rank, axis)[GRID.place(rank)[axis][0]] == rank


@pytest.mark.parametrize("sizes", [{}, {"": 2}, {"machine": 0}, {"machine": 1.5}, {"machine": True}])
def test_an_impossible_grid_is_refused(sizes: dict[str, int]):
    with pytest.raises(ConfigurationError, match="legal: a whole number >= 1"):
        Grid(sizes)


def test_an_axis_that_there_is_not_is_named_with_those_there_are():
    with pytest.raises(ConfigurationError, match="'rack'; this grid has 'machines', 'machine'"):
        GRID.line(0, "rack")
    with pytest.raises(CompositionError, match="'rack' in this run; it has 'machines', 'machine'"):
        Peer(0, 6, axes=GRID.place(0)).on("rack")
    with pytest.raises(CompositionError, match="no axes"):
        Peer(0, 6).on("machine")


def test_a_peer_on_an_axis_counts_along_it_and_draws_apart_from_other_lines():
    peers = [Peer(rank, 6, step=4, name="w", seed=1, axes=GRID.place(rank)).on("machines") for rank in range(6)]
    assert [(peer.rank, peer.world) for peer in peers] == [(0, 2)] * 3 + [(1, 2)] * 3
    assert [peer.name for peer in peers] == ["w@machine=0", "w@machine=1", "w@machine=2"] * 2
    assert (peers[0].step, peers[0].seed) == (4, 1)
    draws = [tuple(peer.shared("m").uniform(4, torch.device("cpu")).tolist()) for peer in peers]
    assert draws[:3] == draws[3:], "all ranks of a line draw the same"
    assert len(set(draws)) == 3, "lines draw apart"


def ask(op: object) -> Exchange[Tensor]:
    return (yield op)  # type: ignore[misc]


def numbers(rank: int) -> Tensor:
    return torch.tensor([float(10**rank)])


def test_collectives_along_an_axis_answer_line_by_line():
    inside = simulate([ask(AllReduce(numbers(r), "sum", axis="machine")) for r in range(6)], GRID)
    assert [float(x) for x in inside] == [111.0] * 3 + [111000.0] * 3
    between = simulate([ask(AllGather(numbers(r), axis="machines")) for r in range(6)], GRID)
    assert [x.flatten().tolist() for x in between[:3]] == [[1.0, 1e3], [10.0, 1e4], [100.0, 1e5]]
    roots = simulate([ask(Broadcast(numbers(r), 1, axis="machine")) for r in range(6)], GRID)
    assert [float(x) for x in roots] == [10.0] * 3 + [10000.0] * 3
    moved = simulate([ask(Permute(numbers(r), ((0, 1),), axis="machines")) for r in range(6)], GRID)
    assert [float(x) for x in moved] == [0, 0, 0, 1, 10, 100]
    rows = torch.arange(3.0).view(3, 1)
    shards = simulate([ask(ReduceScatter(rows + r, "sum", axis="machine")) for r in range(6)], GRID)
    assert [float(x) for x in shards] == [3, 6, 9, 12, 15, 18]


def test_the_simulation_says_when_it_has_no_grid_or_another_one():
    with pytest.raises(ConfigurationError, match="needs a grid"):
        simulate([ask(AllReduce(numbers(r), axis="machine")) for r in range(2)])
    with pytest.raises(ConfigurationError, match="'rack'"):
        simulate([ask(AllReduce(numbers(r), axis="rack")) for r in range(6)], GRID)
    with pytest.raises(ConfigurationError, match="6 ranks, and there are 2"):
        simulate([ask(AllReduce(numbers(r))) for r in range(2)], GRID)
    with pytest.raises(ConfigurationError, match="6 ranks, and world=2"):
        grace.Simulator("none", 2, grid=GRID)


def test_ranks_that_go_along_different_axes_are_told():
    axes = ["machine"] * 5 + ["machines"]
    with pytest.raises(RoundMismatch, match="along machines"):
        simulate([ask(AllReduce(numbers(r), axis=axis)) for r, axis in enumerate(axes)], GRID)


def two_rounds(rank: int) -> Exchange[float]:
    total = yield AllReduce(numbers(rank), "sum")
    return float((yield AllReduce(total, "sum", axis="machines")))


def test_along_moves_what_went_to_all_ranks_and_leaves_the_rest():
    assert simulate([along(two_rounds(r), "machine") for r in range(6)], GRID) == [111111.0] * 6
    assert signature(AllReduce(numbers(0), axis="machine")) == "AllReduce(mean, float32, (1,), along machine)"


def test_along_hands_on_errors():
    run = along(two_rounds(0), "machine")
    next(run)
    with pytest.raises(KeyError):
        run.throw(KeyError("x"))


@pytest.mark.parametrize("kind", [AllReduce, AllGather])
def test_exchanges_along_different_axes_are_not_fused(kind: type):
    def exchanges(rank: int) -> list[Exchange[Tensor]]:
        return [ask(kind(numbers(rank), axis=axis)) for axis in ("", "machine", "machines", "machine")]

    tracers = [Tracer(rank, 6, GRID.place(rank)) for rank in range(6)]
    alone = [simulate([exchanges(r)[i] for r in range(6)], GRID) for i in range(4)]
    fused = simulate([tracers[r].trace(together(exchanges(r))) for r in range(6)], GRID)
    for r in range(6):
        assert all(torch.equal(fused[r][i], alone[i][r]) for i in range(4))
        assert {axis: moved.rounds for axis, moved in tracers[r].by_axis.items()} == {
            "": 1,
            "machine": 1,
            "machines": 1,
        }


def test_traffic_is_counted_along_each_axis():
    tracer = Tracer(0, 6, GRID.place(0))
    simulate([tracer.trace(two_rounds(0)), *(two_rounds(r) for r in range(1, 6))], GRID)
    assert tracer.by_axis == {"": Traffic(1, 7, 7), "machines": Traffic(1, 4, 4)}
    assert tracer.traffic == Traffic(2, 11, 11)
