"""Law 10, failure: a collective that fails, and a result that is dropped, leave the memory whole."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from grace.collectives import Collective, Exchange
from grace.contract.method import Method
from grace.errors import TransportError
from grace.grid import Grid
from grace.run.simulate import answers
from grace.verify.inputs import UGLY, normal
from grace.verify.outcome import Held, Profile
from grace.verify.running import assert_untouched, copy_tensor, find_grid, make_peer, run, snapshot
from grace.verify.subject import Subject
from grace.verify.trials import SHAPE, make_workers


def failure_leaves_memory(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """A collective that fails, in any round, leaves the state whole, and its error passes through. An exchange that has ended
    leaves it whole as well: its new state is a successor, since another exchange of the bucket may still fail.
    """
    states = [out.state for out in run(method, xs, step=0)]
    before = snapshot(states)
    grid = find_grid([method], len(xs))
    rounds = 0
    while True:
        peers = [make_peer(rank, len(xs), 1, grid=grid) for rank in range(len(xs))]
        exchanges = [method.exchange(copy_tensor(x), s, p) for x, s, p in zip(xs, states, peers, strict=True)]
        if not _fail_at(exchanges, rounds, grid):
            assert_untouched(states, before, "failure beside it, after its last round")
            break
        assert_untouched(states, before, f"failure in round {rounds}")
        rounds += 1
    assert rounds > 0 or xs[0].numel() == 0, "failure: there was no round to fail"


def _fail_at(exchanges: list[Exchange[Any]], round_: int, grid: Grid | None) -> bool:
    """Runs exchanges up to a round, which fails on all ranks; False if they ended before."""
    inbox: list[Tensor | None] = [None] * len(exchanges)
    for _ in range(round_ + 1):
        ops: list[Collective] = []
        for exchange, message in zip(exchanges, inbox, strict=True):
            with contextlib.suppress(StopIteration):
                ops.append(next(exchange) if message is None else exchange.send(message))
        if not ops:
            return False
        inbox = list(answers(ops, grid))
    for rank, exchange in enumerate(exchanges):
        error = TransportError("a worker died")
        try:
            exchange.throw(error)
        except TransportError as raised:
            if raised is not error:
                raise AssertionError(f"failure: rank {rank} raised another error") from raised
        except StopIteration:
            raise AssertionError(f"failure: rank {rank} swallowed the error and returned") from None
        else:
            raise AssertionError(f"failure: rank {rank} went on after the error")
    return True


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    for method in subject.all:
        for make in (normal(*SHAPE), UGLY["empty"]):
            failure_leaves_memory(method, make_workers(make, max(2, subject.least_world)))
    return Held("in every round")
