"""Law 2, conservation: the average of x - rest is the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.run import Tracer, simulate
from grace.verify.inputs import normal
from grace.verify.outcome import Held, Profile, no_promise
from grace.verify.running import average, make_peer, run, tolerance
from grace.verify.subject import Subject, conserves, is_memory
from grace.verify.trials import choose_worlds, list_numbers, make_sets, make_workers


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
        sent = average([x.double() - k for x, k in zip(xs, kept, strict=True)])
        error = float((sent - outs[0].mean.double()).abs().max()) if sent.numel() else 0.0
        # the second rounding of W workers' chunks is W times as large in the memory of its owner
        legal = tolerance([*xs, *[k.to(x.dtype) for k, x in zip(kept, xs, strict=True)]], 16 + 2 * len(xs))
        assert error <= legal, f"conservation: average of x - rest is off the mean by {error:.3g}, legal {legal:.3g}"


def scatter_conserves(method: Method[Any], xs: Sequence[Tensor], steps: int = 2, bad: float | None = None) -> None:
    """Conservation where rows are scattered: the average over ranks of row j of ``x - rest`` is the mean that rank j has. What
    the method owes counts as x before, and as rest after. If rank 0 has ``bad`` in its last row, all ranks have NaN, and know
    it. Rounds and bytes are those that are declared.
    """
    W = len(xs)
    states = [method.init(x) for x in xs]
    keep_rest = not is_memory(method)
    for step in range(steps):
        before = [_owed(method, state, x) for state, x in zip(states, xs, strict=True)]
        peers = [make_peer(rank, W, step, keep_rest=keep_rest) for rank in range(W)]
        rows = [x.clone() for x in xs]
        if bad is not None:
            rows[0][-1, -1] = bad
        tracers = [Tracer(rank, W) for rank in range(W)]
        runs = [method.scatter(x, s, p) for x, s, p in zip(rows, states, peers, strict=True)]
        outs = simulate([tracer.trace(exchange) for tracer, exchange in zip(tracers, runs, strict=True)])
        for x, peer, tracer in zip(xs, peers, tracers, strict=True):
            declared = method.scatter_traffic(x.to("meta"), peer)
            assert bad is not None or declared is None or tracer.traffic == declared, (
                f"scatter: rank {peer.rank} declares {declared}, moved {tracer.traffic}"
            )
        states = [out.state for out in outs]
        for rank, out in enumerate(outs):
            assert out.mean.shape == xs[0].shape[1:], f"scatter: the mean of rank {rank} is {tuple(out.mean.shape)}"
            assert bool(out.finite) == (bad is None), f"scatter: rank {rank} says finite={out.finite} of {bad}"
            assert bad is None or bool(out.mean.isnan().all()), f"scatter: rank {rank} has a finite mean of {bad}"
        if bad is not None or not (conserves(method) or is_memory(method)):
            continue
        kept = [_owed(method, state, x) - was for state, x, was in zip(states, xs, before, strict=True)]
        for out, more in zip(outs, kept, strict=True):
            assert out.rest is not None or not keep_rest, "scatter: the rest was not kept"
            more += 0.0 if out.rest is None else out.rest.double()
        sent = average([x.double() - more for x, more in zip(xs, kept, strict=True)])
        legal = tolerance([*xs, *[more.to(x.dtype) for more, x in zip(kept, xs, strict=True)]], 16 + 2 * W)
        for rank, out in enumerate(outs):
            error = float((sent[rank] - out.mean.double()).abs().max()) if out.mean.numel() else 0.0
            assert error <= legal, f"scatter: row {rank} of x - rest is off the mean by {error:.3g}, legal {legal:.3g}"


def _owed(method: Method[Any], state: Any, like: Tensor) -> Tensor:
    """A copy in float64."""
    owed = method.owed(state)
    return torch.zeros_like(like, dtype=torch.float64) if owed is None else owed.double().clone()


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    if not subject.conserves:
        assert subject.remembered is None, "conservation: what does not conserve must refuse a memory"
        return no_promise("a vote, a sum that the network rounds, or a memory of its own; it refuses another")
    worlds = choose_worlds(subject, profile)
    for xs in make_sets(subject, profile):
        conservation(subject.core, xs)
    for world in worlds:
        scatter_conserves(subject.core, make_workers(normal(world, 31), world))
    return Held(f"to a rounding, {list_numbers(worlds)} workers")
