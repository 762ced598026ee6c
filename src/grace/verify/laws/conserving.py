"""Law 2, conservation: the average of x - rest is the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.verify.outcome import Outcome, Profile, no_promise
from grace.verify.running import average, run, tolerance
from grace.verify.subject import Subject
from grace.verify.trials import choose_worlds, list_numbers, make_sets


def conservation(method: Method[Any], xs: Sequence[Tensor], steps: int = 2) -> None:
    """The average over ranks of ``x - rest`` is ``mean``. What the method owes counts as x before, and as rest after."""
    states = [method.init(x) for x in xs]
    owed = [_owed(method, state, x) for state, x in zip(states, xs, strict=True)]
    for step in range(steps):
        outs = run(method, xs, states, step=step, keep_rest=True)
        states = [out.state for out in outs]
        assert all(out.finite for out in outs), "conservation: finite gradients read as non-finite"
        rests = []
        for out, x in zip(outs, xs, strict=True):
            assert out.rest is not None, "conservation: the rest was not kept"
            assert out.rest.shape == x.shape, f"conservation: rest is {tuple(out.rest.shape)}, not {tuple(x.shape)}"
            rests.append(out.rest)
        before, owed = owed, [_owed(method, state, x) for state, x in zip(states, xs, strict=True)]
        kept = [rest.double() + now - was for rest, now, was in zip(rests, owed, before, strict=True)]
        said = average([x.double() - k for x, k in zip(xs, kept, strict=True)])
        error = float((said - outs[0].mean.double()).abs().max()) if said.numel() else 0.0
        # the second rounding of W workers' chunks is W times as large in the memory of its owner
        legal = tolerance([*xs, *[k.to(x.dtype) for k, x in zip(kept, xs, strict=True)]], 16 + 2 * len(xs))
        assert error <= legal, f"conservation: average of x - rest is off the mean by {error:.3g}, legal {legal:.3g}"


def _owed(method: Method[Any], state: Any, like: Tensor) -> Tensor:
    """A copy in float64."""
    owed = method.owed(state)
    return torch.zeros_like(like, dtype=torch.float64) if owed is None else owed.double().clone()


def check(one: Subject, profile: Profile) -> Outcome:
    """What the report says about it."""
    if not one.conserves:
        assert one.remembered is None, "conservation: what does not conserve must refuse a memory"
        return no_promise("a vote, a sum that the network rounds, or a memory of its own; it refuses another")
    worlds = choose_worlds(one, profile)
    for xs in make_sets(one, profile):
        conservation(one.core, xs)
    return Outcome(f"to a rounding, {list_numbers(worlds)} workers")
