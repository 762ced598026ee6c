"""Checksums behind payloads: what arrives as it was sent is the same as without them; everything else is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Exchange, Permute, ReduceScatter
from grace.errors import PayloadError
from grace.grid import Grid
from grace.run import Tracer, simulate
from grace.run.options import Options
from grace.run.session import Session
from grace.transports.checksummed import checksummed
from tests.unit.networks import in_threads

WORLD = 3
PAIRS = ((0, 2), (2, 1))  # rank 0 gets nothing
OPS: dict[str, Callable[[Tensor], Collective]] = {
    "gather": AllGather,
    "all to all": lambda x: AllToAll(x.expand(WORLD, *x.shape) + torch.arange(WORLD).to(x).view(-1, *(1,) * x.ndim)),
    "broadcast": lambda x: Broadcast(x, 1),
    "permute": lambda x: Permute(x, PAIRS),
}  # fmt: skip


def ask(op: Collective) -> Exchange[Tensor]:
    return (yield op)


def numbers(rank: int, shape: Sequence[int] = (2, 3), dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(tuple(shape), generator=torch.Generator().manual_seed(rank)) * 100).to(dtype)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", [(2, 3), (5,), (), (0,)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.int64])
def test_answers_are_the_same(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def ops() -> list[Collective]:
        return [OPS[name](numbers(rank, shape, dtype)) for rank in range(WORLD)]

    plain = simulate([ask(op) for op in ops()])
    checked = simulate([checksummed(ask(op), rank, WORLD) for rank, op in enumerate(ops())])
    for a, b in zip(plain, checked, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert torch.equal(a, b)


@pytest.mark.parametrize("op", [AllReduce, lambda x: ReduceScatter(x.expand(WORLD, 2, 3).contiguous())])
def test_sums_of_the_network_are_left_alone(op: Callable[[Tensor], Collective]) -> None:
    given = [op(numbers(rank)) for rank in range(WORLD)]
    assert [next(checksummed(ask(payload), rank, WORLD)) for rank, payload in enumerate(given)] == given


def test_room_that_was_brought_along_is_used() -> None:
    room = torch.empty(1, 2, 3)
    (answer,) = simulate([checksummed(ask(AllGather(numbers(0), into=room)), 0, 1)])
    assert answer is room
    assert torch.equal(room[0], numbers(0))


def test_four_bytes_are_counted() -> None:
    tracers = [Tracer(rank, WORLD) for rank in range(WORLD)]
    simulate([tracer.trace(checksummed(ask(AllGather(numbers(r))), r, WORLD)) for r, tracer in enumerate(tracers)])
    assert [tracer.traffic.sent for tracer in tracers] == [2 * (24 + 4)] * WORLD


def damage(name: str, rank: int, place: int) -> str:
    """Error of rank ``rank`` if a bit of its answer's byte ``place`` flips."""
    exchange = checksummed(ask(OPS[name](numbers(rank))), rank, WORLD)
    sealed = [next(checksummed(ask(OPS[name](numbers(r))), r, WORLD)) for r in range(WORLD)]
    next(exchange)
    answer = simulate([ask(op) for op in sealed])[rank].clone()
    answer.view(-1)[place] ^= 16
    with pytest.raises(PayloadError) as refused:
        exchange.send(answer)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "rank", "place", "sender"),
    [
        ("gather", 2, 0, 0), ("gather", 0, 28, 1), ("gather", 1, 55, 1), ("gather", 0, 83, 2),
        ("all to all", 1, 0, 0), ("all to all", 1, 83, 2), ("broadcast", 0, 7, 1), ("broadcast", 1, 27, 1),
        ("permute", 2, 3, 0), ("permute", 1, 24, 2),
    ],
)  # fmt: skip
def test_whoever_sent_it_is_named(name: str, rank: int, place: int, sender: int) -> None:
    message = damage(name, rank, place)
    assert message.startswith(f"step 0: what rank {sender} sent in {type(OPS[name](numbers(0))).__name__}(")
    assert f"is damaged on rank {rank}" in message
    assert "start again from a checkpoint" in message


def test_every_flipped_bit_is_found() -> None:
    sealed = next(checksummed(ask(AllGather(numbers(0))), 0, 1)).buf
    for place in range(sealed.numel()):
        for bit in range(8):
            answer = sealed.clone()
            answer[place] ^= 1 << bit
            exchange = checksummed(ask(AllGather(numbers(0))), 0, 1)
            next(exchange)
            with pytest.raises(PayloadError):
                exchange.send(answer[None])


def test_along_an_axis_ranks_count_there() -> None:
    grid = Grid({"machines": 2, "machine": 2})

    def job(rank: int) -> Exchange[Tensor]:
        op = Broadcast(numbers(rank), 1, axis="machine")
        return checksummed(ask(op), rank, 4, grid.place(rank))

    answers = simulate([job(rank) for rank in range(4)], grid)
    assert [torch.equal(x, numbers(1 if rank < 2 else 3)) for rank, x in enumerate(answers)] == [True] * 4
    exchange = job(3)
    next(exchange)
    with pytest.raises(PayloadError, match=r"rank 1 along machine sent in Broadcast\(.* damaged on rank 3"):
        exchange.send(torch.zeros(28, dtype=torch.uint8))


def test_a_session_checks_all_its_exchanges() -> None:
    def job(member: Any, rank: int) -> Any:
        options = Options(checksum=True, check=True)
        session = Session({"w": torch.empty(40, 40)}, grace.Policy([("*", "topk:ratio=0.1")]), member, options)
        mean = session.exchange({"w": numbers(rank, (40, 40))})["w"].clone()
        return mean, session.run(ask(AllGather(numbers(rank)))), session.stats.traffic.sent

    def plain(member: Any, rank: int) -> Any:
        session = Session({"w": torch.empty(40, 40)}, grace.Policy([("*", "topk:ratio=0.1")]), member)
        return session.exchange({"w": numbers(rank, (40, 40))})["w"].clone(), None, session.stats.traffic.sent

    for (a, gathered, sent), (b, _, without) in zip(in_threads(2, job), in_threads(2, plain), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(gathered, torch.stack([numbers(0), numbers(1)]))
        assert sent == without + 4


def test_an_error_of_the_network_reaches_the_exchange() -> None:
    seen = []

    def watching() -> Exchange[None]:
        try:
            yield AllGather(numbers(0))
        except KeyError as error:
            seen.append(error)
            raise

    exchange = checksummed(watching(), 0, 1)
    next(exchange)
    with pytest.raises(KeyError):
        exchange.throw(KeyError("lost"))
    assert seen
