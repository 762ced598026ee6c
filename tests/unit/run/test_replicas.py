"""Comparison of replicas: digests, windows, who stands out, and what a session does about it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import AllReduce, Collective
from grace.errors import ConfigurationError, FingerprintMismatch, ReplicasDifferError, ReplicasWarning
from grace.run.options import Options
from grace.run.replicas import Replicas, digest, find_difference
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.base import Transport, Wrapper
from tests.unit.networks import Loopback, in_threads


def number(xs: Sequence[Tensor]) -> int:
    hashed = digest(xs)
    assert hashed is not None
    return int(hashed)


def bits(x: Tensor) -> Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


# ---- digests --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_flipped_bit_changes_a_digest(dtype: torch.dtype) -> None:
    for size in (1, 2, 3, 4, 7, 8):
        x = torch.linspace(0.5, 1.25, size).to(dtype)  # no exponent from which one bit leads to NaN
        before = number([x])
        for place in range(size):
            for bit in range(8 * x.element_size()):
                y = x.clone()
                top = bit == 8 * x.element_size() - 1
                bits(y)[place] ^= torch.iinfo(bits(y).dtype).min if top else 1 << bit
                assert number([y]) != before, (size, place, bit)


def test_a_flip_in_any_piece_changes_it() -> None:
    x = torch.randn(300_000)
    before = number([x])
    for place in (0, 131_071, 131_072, 262_145, 299_999):
        y = x.clone()
        bits(y)[place] ^= 1
        assert number([y]) != before


def test_the_order_counts_and_where_numbers_lie_does_not() -> None:
    x, y = torch.randn(5, 6), torch.randn(7)
    assert number([x, y]) != number([y, x])
    assert number([x]) != number([x.flip(0)])
    room = torch.empty(64)
    room[1:31] = x.flatten()
    assert number([room[1:31].view(5, 6)]) == number([x]) == number([x.t().contiguous().t()])
    assert digest([]) is digest([torch.empty(0)]) is None


def test_kinds_of_nan_are_one() -> None:
    numbers = torch.tensor([1.0, float("nan")])
    other = numbers.clone()
    bits(other)[1] ^= 5
    assert other.isnan()[1]
    assert number([numbers]) == number([other])
    inf, minus, zero = (torch.tensor([1.0, x]) for x in (float("inf"), -float("inf"), -0.0))
    assert len({number([x]) for x in (numbers, inf, minus, zero, torch.tensor([1.0, 0.0]))}) == 5


# ---- what is looked at ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("sizes", "every"), [((5, 0, 3, 4), 4), ((5, 0, 3, 4), 1), ((2, 1), 7), ((40, 7, 1), 6)])
def test_between_two_comparisons_every_number_is_looked_at(sizes: tuple[int, ...], every: int) -> None:
    means = {f"x{i}": torch.zeros(size) for i, size in enumerate(sizes)}

    def digests() -> list[int]:
        replicas = Replicas(means, every, 2)
        for step in range(every):
            replicas.note({name: means[name] for name in list(means)[:2]})
            replicas.note({name: means[name] for name in list(means)[2:]})
            assert replicas.end_step(step) == (step == every - 1)
        return [int(x) for x in replicas._digests]

    clean = digests()
    for x in means.values():
        for place in range(x.numel()):
            x[place] = 1
            changed = [a != b for a, b in zip(digests(), clean, strict=True)]
            assert changed[-1], "the step that compares looks at everything"
            x[place] = 0
    total = sum(sizes)
    seen = sum(sum(stop - start for _, (start, stop) in Replicas(means, every, 2)._find_window()) for _ in (0,))
    assert every == 1 or 1 <= seen <= total // every + 1


def test_windows_cover_all_numbers_once() -> None:
    like = {"a": torch.empty(3, 7), "none": torch.empty(0), "b": torch.empty(50), "c": torch.empty(())}
    replicas, seen = Replicas(like, 8, 2), []
    for step in range(7):
        seen += [(name, at) for name, (start, stop) in replicas._window.items() for at in range(start, stop)]
        replicas.note({name: torch.ones(x.shape) for name, x in like.items()})
        replicas.end_step(step)
    assert len(seen) == len(set(seen)) == 72 * 7 // 8
    assert not replicas._window
    assert replicas.due


def test_nothing_is_done_alone_or_where_it_is_switched_off() -> None:
    for every, world in ((0, 2), (1, 1)):
        replicas = Replicas({"a": torch.ones(2)}, every, world)
        replicas.note({"a": torch.ones(2)})
        replicas.note_parameters([torch.ones(2)])
        assert not replicas.end_step(0)
        assert replicas._now is None


# ---- who stands out -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "step", "ranks", "root", "message"),
    [
        ([[1, 2, 0, 0], [1, 2, 0, 0], [1, 3, 0, 0]], 6, (2,), 0, "that rank 2 got in step 6 differ from those of most"),
        ([[9, 3, 0, 0], [1, 2, 0, 0], [1, 3, 0, 0]], 5, (0,), 1, "that rank 0 applied differ .* since step 5 at"),
        ([[1, 2, 1, 7], [1, 2, 1, 7], [1, 2, 1, 8]], None, (2,), 0, "the parameters of rank 2 differ .* at step 6"),
        ([[1, 2, 0, 0], [1, 2, 1, 8], [1, 2, 1, 7], [1, 2, 1, 7]], None, (1,), 2, "the parameters of rank 1"),
        ([[1, 2, 1, 7], [1, 4, 1, 8]], 6, (1,), 0, "rank 1 got in step 6 .*which are right cannot be told"),
        ([[1], [2], [3], [3], [1]], 5, (1, 2, 3), 0, "ranks"),
    ],
)  # fmt: skip
def test_who_stands_out(
    rows: list[list[int]], step: int | None, ranks: tuple[int, ...], root: int, message: str
) -> None:
    whole = [row if len(row) > 1 else [row[0], 1, 0, 0] for row in rows]
    difference = find_difference(whole, [5, 6])
    assert difference is not None
    assert (difference.step, difference.ranks, difference.root) == (step, ranks, root)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(difference.describe())


def test_a_rank_that_says_nothing_of_its_parameters_does_not_stand_out() -> None:
    assert find_difference([[1, 0, 0], [1, 1, 7], [1, 1, 7]], [3]) is None
    assert find_difference([[1, 0, 0], [1, 0, 0]], [3]) is None


# ---- a session ---------------------------------------------------------------------------------------------------
class Flipping(Wrapper):
    """Flips a bit of the first float32 that this rank receives in its ``at``-th all-reduce."""

    def __init__(self, transport: Transport, at: int):
        super().__init__(transport)
        self.left = at

    def run(self, op: Collective) -> Tensor:
        answer = self.transport.run(op)
        if isinstance(op, AllReduce):
            self.left -= 1
            if self.left == -1:
                bits(answer)[0] ^= 1 << 20
        return answer


LIKE = {"w": torch.empty(6, 6, device="meta"), "v": torch.empty(9, device="meta")}
POLICY = grace.Policy([("w", "topk:ratio=0.25"), ("*", "none")])


def exchange(steps: int, flips: dict[int, int], world: int = 3, repairs: bool = False, **options: Any) -> list[Any]:
    """Per rank: the error that ended it and the step, or the session. ``flips``: rank to the step in which a bit flips."""

    def job(member: Any, rank: int) -> Any:
        transport = Flipping(member, flips[rank]) if rank in flips else member
        session = Session(LIKE, POLICY, transport, Options(**options), repairs=repairs)
        training = Steps(session)
        for step in range(steps):
            given = torch.Generator().manual_seed(10 * step + rank)
            xs = {name: torch.randn(x.shape, generator=given) for name, x in LIKE.items()}
            try:
                training.step({"v": xs["v"]}, last=False)
                training.step({"w": xs["w"]})
            except ReplicasDifferError as error:
                return step, error
        return session

    return in_threads(world, job)


def test_all_ranks_raise_in_the_same_step_and_name_it() -> None:
    for step, error in exchange(6, {2: 3}, check_replicas_every=1):
        assert step == 3
        assert (error.step, error.ranks) == (3, [2])
        assert "the means that rank 2 got in step 3" in str(error)
        assert "start again from a checkpoint" in str(error)


def test_the_step_that_compares_is_looked_at_in_whole() -> None:
    for step, error in exchange(8, {1: 3}, check_replicas_every=4):
        assert (step, error.step, error.ranks) == (3, 3, [1])


def test_what_was_seen_between_two_comparisons_is_named_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {name: (0, x.numel()) for name, x in LIKE.items()}
    monkeypatch.setattr(Replicas, "_find_window", lambda self: iter(whole.items()))
    for step, error in exchange(8, {0: 5}, check_replicas_every=4):
        assert (step, error.step, error.ranks) == (7, 5, [0])
        assert "since step 5 at the latest" in str(error)


def test_it_costs_an_all_gather_that_is_counted() -> None:
    plain, checked = (exchange(8, {}, check_replicas_every=k)[0].stats for k in (0, 4))
    assert checked.traffic.rounds == plain.traffic.rounds + 2
    assert checked.traffic.sent == plain.traffic.sent + 2 * 2 * 8 * (4 + 2)


def test_it_may_be_repaired_instead() -> None:
    for ended in exchange(3, {1: 2}, check_replicas_every=1, on_difference="broadcast", repairs=True):
        assert ended.error is None
        assert (ended.replicas.difference.ranks, ended.replicas.difference.root) == ((1,), 0)


def test_who_does_not_know_the_parameters_refuses_to_repair() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'broadcast' copies the parameters .* not known here; legal: 'error'"
    ):
        Session(LIKE, POLICY, Loopback(), Options(on_difference="broadcast"))


def repair(method: str, spoil: Callable[[Session], None], shapes: Sequence[int] = (4, 4, 4)) -> list[Any]:
    def job(member: Any, rank: int) -> Any:
        session = Session(
            {"w": torch.empty(6, 6)}, grace.Policy([("*", method)]), member,
            Options(check_replicas_every=2, on_difference="broadcast"), repairs=True,
        )  # fmt: skip
        held, means = torch.full((shapes[rank],), float(rank == 1)), []
        for step in range(6):
            session.replicas.note_parameters([held])
            x = torch.randn(6, 6, generator=torch.Generator().manual_seed(10 * step + rank))
            means.append(session.exchange({"w": x})["w"].clone())
            if rank == 1 and step == 0:
                spoil(session)
            session.advance()
            session.repair(lambda: [held])
        return held, means

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = in_threads(3, job)
    return [*results, caught]


def test_a_repair_copies_what_most_have_and_warns_once() -> None:
    *results, caught = repair("powersgd", lambda session: None)
    assert all(torch.equal(held, torch.zeros(4)) for held, _ in results)
    assert [warning.category for warning in caught] == [ReplicasWarning]
    assert "rank 1 differ from those of most others at step 1" in str(caught[0].message)
    assert "All ranks go on with the parameters of rank 0" in str(caught[0].message)


def _spoil_state(session: Session) -> None:
    _, state = session.worker.state.states["w"]
    for part in state if isinstance(state, tuple) else [state]:
        for x in part if isinstance(part, tuple) else [part]:
            if isinstance(x, Tensor):
                x.add_(1.5)


def test_after_a_repair_methods_start_afresh() -> None:
    *results, caught = repair("randomk:ratio=0.5,memory=ef21", _spoil_state)
    assert caught
    (_, untouched), (_, spoiled), _ = results
    assert not torch.equal(untouched[1], spoiled[1]), "the test spoils nothing"
    for step in range(2, 6):
        assert torch.equal(untouched[step], spoiled[step])


def test_a_repair_of_other_tensors_is_refused_on_all_ranks() -> None:
    *results, _ = repair("none", lambda session: None, shapes=(4, 4, 5))
    assert all(isinstance(session, FingerprintMismatch) for session in results), results
    assert all("tensor 0 to repair" in str(session) for session in results)


def test_steps_without_what_would_be_looked_at_count_too() -> None:
    def job(member: Any, rank: int) -> Any:
        session = Session(LIKE, POLICY, member, Options(check_replicas_every=4))
        for step in range(8):
            session.exchange({("w", "v")[step % 2]: torch.ones(LIKE[("w", "v")[step % 2]].shape)})
            session.advance()
        return session.stats.traffic.rounds

    assert in_threads(2, job) == [8 + 2] * 2
