"""Whatever bit flips in a payload on its way, the rank that receives it refuses it, names the sender, and keeps its memory."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import AllGather, AllReduce, Broadcast, Collective, Exchange, Permute, ReduceScatter
from grace.contract.method import Method
from grace.errors import PayloadError
from grace.run import simulate
from grace.transports import checksummed as checksums
from grace.verify import laws
from grace.verify.inputs import normal
from grace.verify.running import assert_untouched, clone_state, snapshot
from tests.laws.cases import CASES, by_night

SPREAD = True
WORLD = 3


class Fault:
    """A bit that flips in what a rank receives in its ``at``-th collective whose payloads have senders."""

    def __init__(self, at: int, victim: int, dice: random.Random):
        self.left, self.victim, self.dice = at, victim, dice
        self.sender: int | None = None  # whose payload it was, once it has happened

    def run_all(self, exchanges: list[Exchange[Any]]) -> list[Any]:
        runs = [checksums.checksummed(exchange, rank, WORLD, step=1) for rank, exchange in enumerate(exchanges)]
        runs[self.victim] = self._flip(runs[self.victim])
        return simulate(runs)

    def _flip(self, exchange: Exchange[Any]) -> Exchange[Any]:
        try:
            op = next(exchange)
            while True:
                answer = yield op
                if not isinstance(op, AllReduce | ReduceScatter):
                    if self.left == 0:
                        answer = self._damage(op, answer)
                    self.left -= 1
                op = exchange.send(answer)
        except StopIteration as stop:
            return stop.value

    def _damage(self, op: Collective, answer: Tensor) -> Tensor:
        if isinstance(op, Permute):
            senders = [source for source, destination in op.pairs if destination == self.victim]
        else:
            senders = [op.root] if isinstance(op, Broadcast) else list(range(WORLD))
        if not senders:
            return answer
        rows = answer.clone().view(len(senders), -1)
        row = self.dice.randrange(len(senders))
        rows[row, self.dice.randrange(rows.shape[1])] ^= 1 << self.dice.randrange(8)
        self.sender = senders[row]
        return rows.view(answer.shape)


def damage_is_refused(method: Method[Any], xs: Sequence[Tensor], trials: int) -> int:
    """Number of flipped bits that were refused: all of those that happened."""
    count = 0
    start = [out.state for out in laws.run(method, xs, step=0)]
    for trial in range(trials):
        dice = random.Random(trial)
        fault = Fault(trial % 2, dice.randrange(WORLD), dice)
        states = [clone_state(state) for state in start]
        before = snapshot(states)
        try:
            laws.run(method, xs, states, step=1, runner=fault.run_all)
            message = ""
        except PayloadError as error:
            message = str(error)
        if fault.sender is None:
            assert not message, f"checksum: nothing was damaged, and it says {message}"
            continue
        assert message, f"checksum: a bit of rank {fault.sender}'s payload flipped, and nobody says so"
        told = rf"step 1: what rank {fault.sender} sent in .* is damaged on rank {fault.victim}\b"
        assert re.match(told, message), (
            f"checksum: the payload of rank {fault.sender} was damaged, and it says {message}"
        )
        victim = slice(fault.victim, fault.victim + 1)
        assert_untouched(states[victim], before[victim], "checksum:")
        count += 1
    return count


@pytest.mark.parametrize("spec", by_night("a checksum of the first half"))
def test_damage_is_refused(spec: str) -> None:
    damage_is_refused(CASES[spec], [normal(13, 7)(rank) for rank in range(WORLD)], 6)


@pytest.mark.parametrize("spec", by_night("a checksum of the first half"))
def test_the_mean_is_the_same_with_checksums(spec: str) -> None:
    xs = [normal(13, 7)(rank) for rank in range(WORLD)]
    outs = laws.run(CASES[spec], xs, runner=Fault(-1, 0, random.Random(0)).run_all)
    for plain, checked in zip(laws.run(CASES[spec], xs), outs, strict=True):
        assert laws.same_bits(plain.mean, checked.mean)


# ---- mutants --------------------------------------------------------------------------------------------------------
XS = [normal(13, 7)(rank) for rank in range(WORLD)]
METHODS = ("topk:ratio=0.2", "qsgd:bits=3,communicator=scatterreduce", "qsgd:bits=3,communicator=broadcast")


def of_the_first_half(raw: Tensor) -> Tensor:
    return checksum(raw[: len(raw) // 2])


def sum_of_bytes(raw: Tensor) -> Tensor:
    return (raw // 16).sum().to(torch.uint8).expand(4)


checksum = checksums._checksum
describe = checksums._describe
open_ = checksums._open


def blames_itself(op: Collective, rank: int, sender: int) -> str:
    return describe(op, rank, rank)


def gathered_only(op: Collective, answer: Tensor, rank: int, place: int) -> Tensor:
    try:
        return open_(op, answer, rank, place)
    except PayloadError:
        if isinstance(op, AllGather):
            raise
    fixed = torch.cat([answer[..., :-4], answer[..., -4:]], -1)
    rows = fixed.view(-1, fixed.shape[-1])
    for row in rows:
        row[-4:] = checksum(row[:-4])
    return open_(op, fixed, rank, place)


@pytest.mark.parametrize(
    ("name", "mutant", "message"),
    [
        pytest.param("_checksum", of_the_first_half, "nobody says so", id="a checksum of the first half"),
        ("_checksum", sum_of_bytes, "nobody says so"),
        ("_describe", blames_itself, "payload of rank . was damaged, and it says"),
        ("_open", gathered_only, "nobody says so|payload of rank . was damaged, and it says"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_law_catches(monkeypatch: pytest.MonkeyPatch, name: str, mutant: Any, message: str) -> None:
    for method in METHODS:
        assert damage_is_refused(grace.method(method), XS, 12)
    monkeypatch.setattr(checksums, name, mutant)
    with pytest.raises(AssertionError, match=message):
        [damage_is_refused(grace.method(method), XS, 40) for method in METHODS]
