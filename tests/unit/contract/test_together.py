"""Fusing: what is put in one collective, how it is laid out, and what happens when something fails."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Exchange,
    Parts,
    Permute,
    ReduceScatter,
)
from grace.contract.peer import Peer
from grace.contract.workspace import Workspace
from grace.errors import TransportError
from grace.run import Layouts, simulate, together


def ask(*ops: Collective) -> Exchange[list[Tensor]]:
    """An exchange that asks for these, one after the other."""
    answers: list[Tensor] = []
    for op in ops:
        answer = yield op
        answers += [answer]
    return answers


def rounds(exchange: Exchange[Any]) -> tuple[list[Collective], Any]:
    """Questions of a lone worker, and the result. The answer to an all-gather or all-to-all gets a row per worker."""
    asked = []
    op = next(exchange)
    while True:
        asked.append(op)
        try:
            op = exchange.send(op.buf[None] if isinstance(op, AllGather) else op.buf.clone())
        except StopIteration as stop:
            return asked, stop.value


def test_one_collective_for_each_kind_and_dtype():
    a, b = torch.zeros(3), torch.ones(5)
    half = torch.ones(2, dtype=torch.float16)
    asked, _ = rounds(
        together(
            [
                ask(AllReduce(a)),
                ask(AllGather(a)),
                ask(AllReduce(b)),
                ask(AllReduce(b, "sum")),
                ask(AllReduce(half)),
                ask(AllGather(b)),
                ask(Broadcast(a, 0)),
                ask(Broadcast(b, 1)),
                ask(Broadcast(b, 0)),
                ask(Permute(a, ((0, 1),))),
                ask(Permute(b, ((1, 0),))),
            ]
        )
    )
    assert [(type(op).__name__, op.buf.numel()) for op in asked] == [
        ("AllReduce", 8),
        ("AllGather", 8),
        ("AllReduce", 5),
        ("AllReduce", 2),
        ("Broadcast", 8),
        ("Broadcast", 5),
        ("Permute", 3),
        ("Permute", 5),
    ]


def test_exchanges_of_different_lengths():
    asked, results = rounds(
        together(
            [ask(), ask(AllReduce(torch.ones(1))), ask(AllReduce(torch.ones(2)), AllReduce(torch.full((3,), 2.0)))]
        )
    )
    assert [op.buf.numel() for op in asked] == [3, 3]
    assert [[t.tolist() for t in result] for result in results] == [[], [[1.0]], [[1.0, 1.0], [2.0, 2.0, 2.0]]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(1,), (3, 5), (4, 4), (1, 2, 3, 8), (7, 1)])
def test_pieces_begin_aligned(dtype: torch.dtype, sizes: tuple[int, ...]):
    layout = Layouts().of(sizes, dtype)
    at = 0
    for size, gap in zip(layout.sizes, layout.gaps, strict=True):
        assert (at * dtype.itemsize) % 4 == 0
        assert gap * dtype.itemsize < 4
        at += size + gap
    assert at == layout.width


def test_layouts_are_computed_once():
    layouts = Layouts()
    assert layouts.of((3, 5), torch.uint8) is layouts.of((3, 5), torch.uint8)
    assert layouts.of((3, 5), torch.uint8) is not layouts.of((3, 5), torch.float32)
    assert layouts.of((3, 5), torch.uint8).width == 12


@pytest.mark.parametrize("workspace", [None, Workspace()])
@pytest.mark.parametrize("sizes", [(3, 5, 1), (4, 8), (1,)])
def test_everyone_gets_its_own_piece(sizes: tuple[int, ...], workspace: Workspace | None):
    """Every kind, with unaligned bytes, W=3, against asking alone."""
    W = 3
    for make in (AllGather, AllReduce, lambda buf: Broadcast(buf, 1), lambda buf: Permute(buf, ((0, 2), (2, 1)))):

        def ops(rank: int, make: Any = make) -> list[Collective]:
            return [make(torch.full((size,), 10 * rank + i, dtype=torch.uint8)) for i, size in enumerate(sizes)]

        if make is AllReduce:

            def ops(rank: int, make: Any = make) -> list[Collective]:
                return [AllReduce(torch.full((size,), 10.0 * rank + i), "max") for i, size in enumerate(sizes)]

        fused = simulate([together([ask(op) for op in ops(r)], Layouts(), workspace) for r in range(W)])
        for i in range(len(sizes)):
            alone = simulate([ask(ops(r)[i]) for r in range(W)])
            for r in range(W):
                assert torch.equal(fused[r][i][0], alone[r][0])
                assert fused[r][i][0].shape == alone[r][0].shape


@pytest.mark.parametrize("make", [AllToAll, ReduceScatter])
def test_rows_stay_rows(make: Any):
    """Buffers ``[W, ...]`` are fused row by row, several dimensions included."""
    W = 3

    def ops(rank: int) -> list[Collective]:
        return [make(torch.arange(float(W * n * 2)).view(W, n, 2) + 100 * rank) for n in (1, 3, 2)]

    fused = simulate([together([ask(op) for op in ops(r)]) for r in range(W)])
    for i in range(3):
        alone = simulate([ask(ops(r)[i]) for r in range(W)])
        for r in range(W):
            assert torch.equal(fused[r][i][0], alone[r][0])


# ---- the order of bytes ----------------------------------------------------------------------------------------------
def packed(parts: dict[int, list[float]], *, kind: Any = AllReduce) -> Exchange[list[Tensor]]:
    """An exchange that asks for several tensors at once."""
    sizes = tuple(map(len, parts.values()))
    op = kind(torch.tensor(list(itertools.chain(*parts.values()))), parts=Parts(tuple(parts), sizes))
    return [(yield op)]


@pytest.mark.parametrize("workspace", [None, Workspace()])
def test_parts_travel_in_the_order_of_the_bucket(workspace: Workspace | None):
    """Whichever of them share an exchange; each exchange gets back its own."""
    runs = [packed({0: [1.0, 2.0], 1: [6.0]}), ask(AllReduce(torch.tensor([3.0, 4.0]))), packed({0: [5.0], 1: [7.0]})]
    asked, results = rounds(together(runs, Layouts(), workspace, [(0, 3), (1,), (2, 4)]))
    assert [op.buf.tolist() for op in asked] == [[1, 2, 3, 4, 5, 6, 7]]
    assert [answer.tolist() for (answer,) in results] == [[1, 2, 6], [3, 4], [5, 7]]
    assert asked[0].parts is None


def test_what_is_not_interleaved_is_not_cut():
    runs = [packed({0: [1.0], 1: [2.0]}), packed({0: [3.0]})]
    asked, results = rounds(together(runs, places=[(0, 1), (2,)]))
    assert [op.buf.tolist() for op in asked] == [[1, 2, 3]]
    assert [answer.tolist() for (answer,) in results] == [[1, 2], [3]]


def test_nested_exchanges_say_whose_their_parts_are():
    inner = together([ask(AllReduce(torch.ones(2))), packed({0: [3.0]}), ask(AllReduce(torch.zeros(1)))])
    op = next(inner)
    assert op.parts == Parts((0, 1, 2), (2, 1, 1))
    inner.close()
    bytes_ = [torch.full((size,), size, dtype=torch.uint8) for size in (3, 5)]
    op = next(together([ask(AllGather(buf)) for buf in bytes_]))
    assert op.parts == Parts((0, 1), (4, 8)), "with the gaps behind them"
    runs = [together([ask(AllReduce(torch.full((2,), i))) for i in pair]) for pair in ((0.0, 2.0), (1.0, 3.0))]
    asked, results = rounds(together(runs, places=[(0, 2), (1, 3)]))
    assert [op.buf.tolist() for op in asked] == [[0, 0, 1, 1, 2, 2, 3, 3]]
    assert [[answer.tolist() for (answer,) in result] for result in results] == [[[0, 0], [2, 2]], [[1, 1], [3, 3]]]


def test_exchanges_of_several_tensors_say_whose_their_parts_are():
    runs = [packed({0: [1.0], 1: [4.0, 5.0]}), ask(AllReduce(torch.tensor([2.0, 3.0])))]
    asked, results = rounds(together(runs, places=[(0, 3), (2,)], labels=True))
    assert [(op.buf.tolist(), op.parts) for op in asked] == [([1, 2, 3, 4, 5], Parts((0, 2, 3), (1, 2, 2)))]
    assert [answer.tolist() for (answer,) in results] == [[1, 4, 5], [2, 3]]


def test_rounds_go_in_the_order_of_the_bucket():
    """Also where the first round was of several kinds."""
    after = [AllReduce(torch.full((1,), float(i))) for i in range(3)]
    first = [AllReduce(torch.ones(1)), AllGather(torch.ones(1)), AllReduce(torch.ones(1))]
    asked, _ = rounds(together([ask(a, b) for a, b in zip(first, after, strict=True)]))
    assert asked[-1].buf.tolist() == [0, 1, 2]


# ---- without a copy -------------------------------------------------------------------------------------------------
def test_neighbors_travel_as_they_are():
    bucket = torch.arange(10.0)
    parts = [bucket[:4].view(2, 2), bucket[4:5], bucket[5:]]
    run = together([ask(AllReduce(part, donate=True)) for part in parts])
    op = next(run)
    assert op.buf.data_ptr() == bucket.data_ptr()
    assert op.buf.shape == (10,)
    assert op.donate  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as stop:
        run.send(op.buf.mul_(2))
    answers = [answer for (answer,) in stop.value.value]
    assert [a.data_ptr() for a in answers] == [p.data_ptr() for p in parts]
    assert torch.equal(bucket, torch.arange(10.0) * 2)


def test_neighbors_are_filled_from_an_answer_elsewhere():
    bucket = torch.arange(6.0)
    run = together([ask(AllReduce(part, donate=True)) for part in (bucket[:2], bucket[2:])])
    op = next(run)
    with pytest.raises(StopIteration) as stop:
        run.send(op.buf + 1)
    assert stop.value.value[1][0].tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(
    "parts",
    [
        lambda t: [t[5:], t[:5]],  # neighbors in the wrong order
        lambda t: [t[:4], t[5:]],  # a gap
        lambda t: [t[:4], t[3:]],  # they overlap
        lambda t: [t[:4:2], t[4:]],  # not contiguous
        lambda t: [t[:5].clone(), t[5:].clone()],
    ],
)
def test_what_does_not_lie_side_by_side_is_copied(parts: Any):
    t = torch.arange(10.0)
    pieces = parts(t)
    before = [piece.clone() for piece in pieces]
    run = together([ask(AllReduce(piece, donate=True)) for piece in pieces])
    op = next(run)
    assert op.buf.untyped_storage().data_ptr() != t.untyped_storage().data_ptr()
    with pytest.raises(StopIteration) as stop:
        run.send(op.buf * 2)
    for (answer,), was in zip(stop.value.value, before, strict=True):
        assert torch.equal(answer, was * 2)


def test_what_is_not_donated_is_not_overwritten():
    t = torch.arange(4.0)
    run = together([ask(AllReduce(t[:2])), ask(AllReduce(t[2:]))])
    op = next(run)
    with pytest.raises(StopIteration):
        run.send(op.buf.mul_(0))
    assert torch.equal(t, torch.arange(4.0))


# ---- failures -------------------------------------------------------------------------------------------------------
class Noted:
    """Exchanges that note how they ended."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def exchange(self, name: str, rounds_: int) -> Exchange[None]:
        try:
            for _ in range(rounds_):
                yield AllReduce(torch.ones(1))
        except GeneratorExit:
            self.ends.append(f"{name} closed")
            raise
        else:
            self.ends.append(f"{name} ended")


def test_a_failing_collective_closes_all():
    noted = Noted()
    run = together([noted.exchange("a", 2), noted.exchange("b", 1), noted.exchange("c", 2)])
    next(run)
    run.send(torch.ones(3))
    with pytest.raises(TransportError, match="dead"):
        run.throw(TransportError("dead"))
    assert noted.ends == ["b ended", "a closed", "c closed"]


def test_a_failing_exchange_closes_the_others():
    noted = Noted()

    def bad() -> Exchange[None]:
        yield AllReduce(torch.ones(1))
        raise ValueError("a payload")

    run = together([noted.exchange("a", 2), bad(), noted.exchange("c", 2)])
    next(run)
    with pytest.raises(ValueError, match="a payload"):
        run.send(torch.ones(3))
    assert noted.ends == ["a closed", "c closed"]


def test_being_closed_closes_all():
    noted = Noted()
    run = together([noted.exchange("a", 1), noted.exchange("b", 1)])
    next(run)
    run.close()
    assert noted.ends == ["a closed", "b closed"]


def test_no_memory_commits_before_all_collectives_of_a_round():
    """The gather succeeds, the reduction after it fails: what the gather brought is not applied, nor is it forgotten."""
    method = grace.method("topk:ratio=0.5")
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    state = method.init(x)
    run = together([method.exchange(x, state, Peer(0, 1)), ask(AllReduce(torch.ones(2)))])
    gather = next(run)
    assert isinstance(gather, AllGather)
    assert isinstance(run.send(gather.buf[None]), AllReduce)
    with pytest.raises(TransportError):
        run.throw(TransportError("dead"))
    assert not state[0].any()


def test_of_nothing():
    with pytest.raises(StopIteration) as stop:
        next(together([]))
    assert stop.value.value == []


def test_scalars_travel_with_others():
    method = grace.method("none")
    runs = [
        together([method.exchange(x, None, Peer(rank, 2)) for x in (torch.tensor(rank + 1.0), torch.ones(3))])
        for rank in range(2)
    ]
    for scalar, vector in simulate(runs):
        assert scalar.mean.shape == ()
        assert scalar.mean.item() == 1.5
        assert vector.mean.tolist() == [1, 1, 1]
