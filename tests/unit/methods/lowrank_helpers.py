"""Running methods of matrices step by step, and what must hold for each of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grace.contract.lent import Lent
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.run.simulate import simulate
from grace.transports.traced import Tracer


def rand(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def steps(
    method: Method, inputs: list[list[Tensor]], states: list | None = None, *, rest: bool = True, first: int = 0
) -> list[list[Exchanged]]:
    """``inputs[t][rank]`` -> the results of all steps and ranks, whose numbers begin at ``first``; traffic is as declared."""
    world = len(inputs[0])
    states = states or [method.init(x) for x in inputs[0]]
    outs = []
    for t, xs in enumerate(inputs, first):
        peers = [Peer(r, world, t, "x", lent=Lent(keep_rest=rest)) for r in range(world)]
        tracers = [Tracer(r, world) for r in range(world)]
        runs = [
            tracer.trace(method.exchange(x.clone(), state, peer))
            for tracer, x, state, peer in zip(tracers, xs, states, peers, strict=True)
        ]
        outs.append(simulate(runs))
        states = [out.state for out in outs[-1]]
        declared = [method.traffic(xs[0], peer) for peer in peers]
        assert declared[0] is None or declared == [tracer.traffic for tracer in tracers]
    return outs


def check_agreement_and_conservation(method: Method, shape: tuple[int, ...], count: int = 6) -> None:
    for world in (1, 2, 3, 8):
        inputs = [[rand(*shape, seed=100 * t + r) for r in range(world)] for t in range(count)]
        for xs, outs in zip(inputs, steps(method, inputs), strict=True):
            assert all(torch.equal(out.mean, outs[0].mean) for out in outs)
            told = torch.stack([x.double() - out.rest.double() for x, out in zip(xs, outs, strict=True)]).mean(0)
            torch.testing.assert_close(told, outs[0].mean.double(), rtol=0, atol=2e-5)


def check_memory_loses_nothing(method: Method, shape: tuple[int, ...], world: int = 3, count: int = 8) -> None:
    inputs = [[rand(*shape, seed=100 * t + r) for r in range(world)] for t in range(count)]
    outs = steps(method, inputs, rest=False)
    sent = torch.stack([out[0].mean for out in outs]).double().sum(0)
    owed = torch.stack([method.owed(out.state) for out in outs[-1]]).double().mean(0)
    given = torch.stack([torch.stack(xs) for xs in inputs]).double().sum(0).mean(0)
    torch.testing.assert_close(sent + owed, given, rtol=0, atol=5e-5)


def check_never_larger_than_the_mean(method: Method, shape: tuple[int, ...], count: int = 6) -> None:
    """|mean - C| <= |mean|, for inputs of several kinds."""
    kinds = {
        "gaussian": lambda t, r: rand(*shape, seed=100 * t + r),
        "log-normal": lambda t, r: rand(*shape, seed=t + 7 * r).exp() * rand(*shape, seed=100 * t + r).sign(),
        "one-hot": lambda t, r: torch.zeros(shape).index_put_((torch.tensor(3), torch.tensor(t)), torch.tensor(2.0)),
        "constant": lambda t, r: torch.full(shape, -3.0),
        "sparse": lambda t, r: rand(*shape, seed=t) * (rand(*shape, seed=r) > 2.3),
    }
    for make in kinds.values():
        inputs = [[make(t, r) for r in range(2)] for t in range(count)]
        for xs, outs in zip(inputs, steps(method, inputs), strict=True):
            mean = torch.stack(xs).double().mean(0)
            assert float((mean - outs[0].mean).norm()) <= float(mean.norm()) * (1 + 1e-5)


def check_ugly_inputs(method: Method, shape: tuple[int, ...], count: int = 4) -> None:
    """Finite results for huge, tiny, zero, equal and negative numbers, in any order, and agreement."""
    ugly = [
        torch.zeros(shape),
        torch.full(shape, 1e38),
        rand(*shape, seed=1) * 1e37,
        torch.full(shape, 1e-42),
        rand(*shape, seed=2) * 1e-40,
        -rand(*shape, seed=3).abs(),
        torch.full(shape, -1.0),
    ]
    for x in ugly:
        outs = steps(method, [[x, x], [x, x], [rand(*shape, seed=4)] * 2, [torch.zeros(shape)] * 2][:count])
        for step_outs in outs:
            assert all(out.finite for out in step_outs)
            assert bool(step_outs[0].mean.isfinite().all())
            assert bool(step_outs[0].rest.isfinite().all())
            assert torch.equal(step_outs[0].mean, step_outs[1].mean)
        assert not bool(steps(method, [[torch.zeros(shape)] * 2] * 2)[1][0].mean.any())


def check_dtypes_and_layouts(method: Method, shape: tuple[int, ...]) -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        outs = steps(method, [[rand(*shape, seed=r).to(dtype) for r in range(2)]] * 2)
        assert outs[1][0].mean.dtype == dtype
        assert outs[1][0].mean.shape == shape
    x = rand(*reversed(shape), seed=1).permute(*reversed(range(len(shape))))
    a = steps(method, [[x, x]] * 2)[1][0].mean
    b = steps(method, [[x.contiguous()] * 2] * 2)[1][0].mean
    torch.testing.assert_close(a, b)


def check_non_finite(method: Method, shape: tuple[int, ...], before: int) -> None:
    """After ``before`` good steps one rank has an inf or NaN: all see it, and no state changes."""
    for value in (math.inf, math.nan):
        good = [[rand(*shape, seed=10 * t + r) for r in range(3)] for t in range(before + 1)]
        states = (
            [out.state for out in steps(method, good[:before])[-1]] if before else [method.init(x) for x in good[0]]
        )
        kept = [flat(state) for state in states]
        bad = [x.clone() for x in good[before]]
        bad[1].view(-1)[5] = value
        outs = simulate(
            [method.exchange(x, s, Peer(r, 3, before, "x")) for r, (x, s) in enumerate(zip(bad, states, strict=True))]
        )
        for out, parts in zip(outs, kept, strict=True):
            assert not out.finite
            assert bool(out.mean.isnan().all())
            assert all(torch.equal(a, b) for a, b in zip(flat(out.state), parts, strict=True))


def flat(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state.clone()]
    if isinstance(state, tuple):
        return [tensor for part in state for tensor in flat(part)]
    return [] if state is None else [torch.tensor(state)]
