"""Collectives in lock step, and ranks that ask for different ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Exchange, Permute, ReduceScatter
from grace.errors import RoundMismatch, round_mismatch
from grace.run import simulate

W = 3


def numbers_of(rank: int) -> Tensor:
    return torch.arange(6.0).view(3, 2) + 10 * rank


def ask(op: Collective) -> Exchange[Tensor]:
    return (yield op)


def run(make: Callable[[int], Collective]) -> list[Tensor]:
    return simulate([ask(make(rank)) for rank in range(W)])


@pytest.mark.parametrize(
    ("op", "expected"),
    [("sum", numbers_of(0) + numbers_of(1) + numbers_of(2)), ("mean", numbers_of(1)), ("max", numbers_of(2))],
)
def test_all_reduce(op: str, expected: Tensor):
    for answer in run(lambda r: AllReduce(numbers_of(r), op)):  # type: ignore[arg-type]
        torch.testing.assert_close(answer, expected)


def test_the_mean_is_divided_before_it_can_overflow():
    (answer, *_) = run(lambda r: AllReduce(torch.full((2,), 60_000.0, dtype=torch.float16)))
    assert bool(answer.isfinite().all())


def test_all_gather_broadcast_and_permute():
    for answer in run(lambda r: AllGather(numbers_of(r))):
        assert torch.equal(answer, torch.stack([numbers_of(0), numbers_of(1), numbers_of(2)]))
    for answer in run(lambda r: Broadcast(numbers_of(r), 2)):
        assert torch.equal(answer, numbers_of(2))
    first, second, third = run(lambda r: Permute(numbers_of(r), ((0, 1), (1, 0))))
    assert torch.equal(first, numbers_of(1))
    assert torch.equal(second, numbers_of(0))
    assert torch.equal(third, torch.zeros(3, 2))


def test_all_to_all_and_reduce_scatter():
    for rank, answer in enumerate(run(lambda r: AllToAll(numbers_of(r)))):
        assert torch.equal(answer, torch.stack([numbers_of(r)[rank] for r in range(W)]))
    for rank, answer in enumerate(run(lambda r: ReduceScatter(numbers_of(r), "sum"))):
        assert torch.equal(answer, numbers_of(0)[rank] + numbers_of(1)[rank] + numbers_of(2)[rank])


@pytest.mark.parametrize("make", [AllReduce, AllGather, lambda b: Broadcast(b, 1), lambda b: Permute(b, ((0, 1),))])
def test_answers_are_nobodys_buffer(make: Callable[[Tensor], Collective]):
    bufs = [numbers_of(rank) for rank in range(W)]
    answers = simulate([ask(make(buf)) for buf in bufs])
    pointers = {t.untyped_storage().data_ptr() for t in (*bufs, *answers)}
    assert len(pointers) == 2 * W


def test_ranks_that_ask_for_different_collectives():
    with pytest.raises(RoundMismatch) as raised:
        run(lambda r: AllReduce(numbers_of(r)) if r != 1 else AllGather(numbers_of(r)))
    text = str(raised.value)
    assert "ranks [0, 2]: AllReduce(mean, float32, (6,))" in text
    assert "ranks [1]: AllGather(float32, (3, 2))" in text


@pytest.mark.parametrize(
    "make",
    [
        lambda r: AllReduce(numbers_of(r)[: r + 1]),
        lambda r: AllReduce(numbers_of(r).half() if r else numbers_of(r)),
        lambda r: AllReduce(numbers_of(r), "sum" if r else "mean"),
        lambda r: Broadcast(numbers_of(r), r),
        lambda r: Permute(numbers_of(r), ((0, r),)),
    ],
)
def test_every_field_must_agree(make: Callable[[int], Collective]):
    with pytest.raises(RoundMismatch):
        run(make)


def test_a_rank_that_has_finished():
    def some(rank: int) -> Exchange[int]:
        for _ in range(rank + 1):
            yield AllReduce(torch.ones(1))
        return rank

    with pytest.raises(RoundMismatch, match=r"ranks \[0\]: finished"):
        simulate([some(rank) for rank in range(W)])


def test_a_mismatch_closes_all():
    closed = []

    def noted(rank: int) -> Exchange[None]:
        try:
            yield AllReduce(torch.ones(rank + 1))
        finally:
            closed.append(rank)

    with pytest.raises(RoundMismatch):
        simulate([noted(rank) for rank in range(W)])
    assert closed == [0, 1, 2]


def test_an_error_is_raised_after_all_got_their_answers():
    """As in processes of their own: rank 0's error does not keep rank 1 from its answer."""
    got = []

    def failing(rank: int) -> Exchange[None]:
        yield AllReduce(torch.ones(1))
        got.append(rank)
        if rank == 0:
            raise ValueError("rank 0")

    with pytest.raises(ValueError, match="rank 0"):
        simulate([failing(rank) for rank in range(W)])
    assert got == [0, 1, 2]


def test_of_nobody():
    assert simulate([]) == []


def test_mismatch_groups_ranks():
    assert (
        str(round_mismatch({0: "a", 1: "b", 2: "a"}))
        == "ranks ask for different collectives: ranks [0, 2]: a; ranks [1]: b"
    )
