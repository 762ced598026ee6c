"""Law 3, nothing is lost: means and what memories owe sum to the gradients, as error feedback promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.contract.wrapping import layers
from grace.memories import Memory
from grace.verify.outcome import Held, Profile, no_promise
from grace.verify.running import average, run, tolerance
from grace.verify.subject import Subject
from grace.verify.trials import choose_worlds, list_numbers, make_sets


def nothing_lost(method: Method[Any], steps: Sequence[Sequence[Tensor]]) -> None:
    """With a memory that loses nothing, the sum of means plus the average memory is the sum of average gradients."""
    memory = next((layer for layer in layers(method) if isinstance(layer, Memory)), None)
    assert memory is not None, f"nothing_lost: {method} has no memory"
    assert memory.loses_nothing, "nothing_lost: a memory that loses on purpose, and says so"
    states = [method.init(x) for x in steps[0]]
    applied = torch.zeros_like(steps[0][0], dtype=torch.float64)
    truth = torch.zeros_like(applied)
    seen: list[Tensor] = []
    owed: list[Tensor] = []
    for step, xs in enumerate(steps):
        outs = run(method, xs, states, step=step)
        states = [out.state for out in outs]
        assert all(out.finite for out in outs), "nothing lost: finite gradients read as non-finite"
        applied += outs[0].mean.double()
        truth += average(xs) * getattr(memory, "gamma", 1)
        owed = [debt for state in states if (debt := method.owed(state)) is not None]
        seen += [*[x.float() for x in xs], *[debt.float() for debt in owed]]  # narrow gradients lose no more
    assert len(owed) == len(states), "nothing lost: a memory that owes nothing"
    error = float((applied + average(owed) - truth).abs().max()) if truth.numel() else 0.0
    legal = tolerance(seen, 4.0 * len(steps) + 4 * len(steps[0]))
    assert error <= legal, f"nothing lost: means and memories are off the gradients by {error:.3g}, legal {legal:.3g}"


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    if subject.remembered is None:
        return no_promise("it refuses a memory")
    for xs in make_sets(subject, profile):
        nothing_lost(subject.remembered, [[x * (1 - 0.5 * t) for x in xs] for t in range(4)])
    return Held(f"to a rounding, 4 steps, {list_numbers(choose_worlds(subject, profile))} workers")
