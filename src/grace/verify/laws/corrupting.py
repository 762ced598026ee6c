"""Law 11, corruption: a damaged wire is refused, or decodes to finite numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllGather, AllToAll, Broadcast, Collective, Exchange, Permute, watch
from grace.contract.method import Method
from grace.errors import PayloadError
from grace.grid import Grid
from grace.run import simulate
from grace.verify.inputs import normal
from grace.verify.outcome import Held, Profile, no_promise
from grace.verify.running import Runner, assert_untouched, clone_state, run, same_bits, snapshot
from grace.verify.subject import Subject
from grace.verify.trials import make_some, make_workers


def corruption_is_refused(method: Method[Any], xs: Sequence[Tensor], trials: int = 24) -> tuple[int, int]:
    """If gathered bytes are flipped or cut on their way, the exchange raises a PayloadError and leaves the state as it was, or
    gives finite numbers that all ranks agree on. Nothing else.

    Returns:
        how many trials there were (none if the method gathers no bytes), and how many were refused.
    """
    start = [out.state for out in run(method, xs, step=0)]
    rounds = _gathers(method, xs, start)
    refused = 0
    for trial in range(trials if rounds else 0):
        states = [clone_state(state) for state in start]
        before, at = snapshot(states), trial % rounds
        flip = trial // rounds % 3 != 2
        what = f"corruption: after round {at} of gathered bytes was {'flipped' if flip else 'cut'} (trial {trial}),"
        try:
            outs = run(method, xs, states, step=1, runner=_garble_all(at, flip, trial))
        except PayloadError:
            refused += 1
            assert_untouched(states, before, what)
            continue
        except Exception as error:
            raise AssertionError(f"{what} it raised {type(error).__name__}: {error}") from error
        for out, x in zip(outs, xs, strict=True):
            assert out.mean.shape == x.shape, f"{what} mean is {tuple(out.mean.shape)}, not {tuple(x.shape)}"
            assert same_bits(out.mean, outs[0].mean), f"{what} ranks have different means"
            assert not out.finite or bool(out.mean.isfinite().all()), f"{what} the mean has an inf or NaN"
    return (trials if rounds else 0), refused


def _gathers(method: Method[Any], xs: Sequence[Tensor], states: Sequence[Any]) -> int:
    """Number of rounds of gathered bytes in a step."""
    rounds = 0

    def count(op: Collective) -> Collective:
        nonlocal rounds
        rounds += _is_gathered(op)
        return op

    def count_on_rank_0(exchanges: list[Exchange[Any]], grid: Grid | None = None) -> list[Any]:
        return simulate([watch(exchanges[0], count), *exchanges[1:]], grid)

    run(method, xs, [clone_state(state) for state in states], step=1, runner=count_on_rank_0)
    return rounds


def _is_gathered(op: Collective) -> bool:
    return isinstance(op, AllGather | AllToAll | Broadcast | Permute) and op.buf.dtype == torch.uint8


def _garble_all(at: int, flip: bool, seed: int) -> Runner:
    return lambda exchanges, grid=None: simulate([_garble(exchange, at, flip, seed) for exchange in exchanges], grid)


def _garble(exchange: Exchange[Any], at: int, flip: bool, seed: int) -> Exchange[Any]:
    """The exchange with wrong bytes in the answer to its ``at``-th round of gathered bytes, the same on all ranks."""
    dice, seen = random.Random(seed), 0

    def garble(op: Collective, answer: Tensor) -> Tensor:
        nonlocal seen
        if not _is_gathered(op):
            return answer
        seen += 1
        if seen - 1 != at:
            return answer
        return _flip(answer, dice) if flip else _cut(answer, dice)

    return watch(exchange, hear=garble)


def _flip(answer: Tensor, dice: random.Random) -> Tensor:
    """The bytes with one to four of them replaced, half of the time near the front, where counts and scales are."""
    out = answer.contiguous().clone()
    rows = out.view(out.shape[0], -1) if out.ndim > 1 else out.view(1, -1)
    for _ in range(dice.randint(1, 4)):
        width = rows.shape[1] if dice.random() < 0.5 else min(24, rows.shape[1])
        rows[dice.randrange(rows.shape[0]), dice.randrange(width)] = dice.randrange(256)
    return out


def _cut(answer: Tensor, dice: random.Random) -> Tensor:
    """The bytes without the last ones of each row."""
    width = answer.shape[-1]
    return answer[..., : dice.randrange(width)].contiguous() if width else answer


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    trials = refused = 0
    for method in subject.all:
        for xs in (make_some(subject), make_workers(normal(5), max(2, subject.least_world))):
            counts = corruption_is_refused(method, xs, profile.trials)
            trials, refused = trials + counts[0], refused + counts[1]
    if not trials:
        return no_promise("no bytes are gathered; the network sums numbers")
    return Held(f"{refused} of {trials} refused, the others finite", numbers={"trials": trials, "refused": refused})
