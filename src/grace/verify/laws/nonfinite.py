"""Law 9, non-finite gradients are agreed on, and poison no memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from grace.contract.method import Method
from grace.verify.inputs import UGLY
from grace.verify.outcome import Held, Profile
from grace.verify.running import assert_untouched, clone_state, copy_tensor, run, same_bits, snapshot
from grace.verify.subject import Subject
from grace.verify.trials import make_workers


def nonfinite_is_agreed(method: Method[Any], steps: Sequence[Sequence[Tensor]], bad: float, rank: int, at: int) -> None:
    """An inf or NaN anywhere: a non-finite mean everywhere, memories as they were, and training goes on."""
    spoiled = [copy_tensor(x.contiguous()) for x in steps[1]]
    spoiled[rank].view(-1)[at] = bad
    states = [method.init(x) for x in steps[0]]
    states = [out.state for out in run(method, steps[0], states, step=0)]
    before, fresh = snapshot(states), [clone_state(state) for state in states]
    outs = run(method, spoiled, states, step=1)
    for r, out in enumerate(outs):
        assert not bool(out.mean.isfinite().all()), f"non-finite: rank {r} has a finite mean"
        assert not bool(out.mean.view(-1)[at].isfinite()), f"non-finite: rank {r} is finite where {bad} went in"
        assert out.finite == outs[0].finite, "non-finite: ranks differ in `finite`"
        assert same_bits(out.mean.isnan(), outs[0].mean.isnan()), f"non-finite: rank {r} differs from rank 0"
        if not out.finite:
            assert bool(out.mean.isnan().all()), f"non-finite: mean of rank {r} is not NaN throughout"
    assert_untouched([out.state for out in outs], before, "non-finite")
    after = run(method, steps[2], [out.state for out in outs], step=2)
    for out, expected in zip(after, run(method, steps[2], fresh, step=2), strict=True):
        assert out.finite, "non-finite: the next step is still poisoned"
        assert same_bits(out.mean, expected.mean), "non-finite: the next step differs from one without the bad step"


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    names = ("normal", "one element", "f16", *(("0-d", "f64", "zeros", "channels last") if profile.ugly else ()))
    cases = [(name, bad) for bad in (math.nan, math.inf, -math.inf) for name in names]
    for name, bad in cases[:: 1 if profile.every else 4]:
        xs = make_workers(UGLY[name], max(2, subject.least_world))
        steps = [xs, [x * 2 for x in xs], [-x for x in xs]]
        for method in subject.all:
            nonfinite_is_agreed(method, steps, bad, rank=len(xs) - 1, at=xs[0].numel() // 2)
    return Held("inf, -inf and NaN: NaN on all ranks, memories untouched")
