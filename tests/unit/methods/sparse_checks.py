"""Laws of every sparse compressor, for the tests of single methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.lent import Lent
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.errors import PayloadError
from grace.random import Stream
from grace.run.simulate import simulate

WORLDS = (1, 2, 3, 8)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stream(seed: int = 0, step: int = 0) -> Stream:
    return Stream(seed, "test", "x", 0, step)


def inputs(n: int = 1000) -> Iterator[tuple[str, Tensor]]:
    """Gaussian, log-normal with signs, one-hot, constant, 1 % dense."""
    gen = generator(1)
    x = torch.randn(n, generator=gen)
    yield "gaussian", x
    yield "log-normal", torch.randn(n, generator=gen).mul(2).exp() * x.sign()
    yield "one-hot", torch.zeros(n).index_fill(0, torch.tensor([n // 3]), -2.5)
    yield "constant", torch.full((n,), 0.3)
    yield "sparse", x * (torch.rand(n, generator=gen) < 0.01)


def edges() -> Iterator[tuple[str, Tensor]]:
    yield "zeros", torch.zeros(37)
    yield "one", torch.tensor([-3.0])
    yield "one zero", torch.tensor([0.0])
    yield "negative", -torch.arange(1.0, 42.0)
    yield "ties", torch.tensor([2.0, -2.0] * 17)
    yield "huge", torch.tensor([1e38, -3e38, 3.4e38, 1.0] * 9)
    yield "denormal", torch.tensor([1e-45, -1e-42, 1e-39, 0.0] * 9)


def decoded(compressor: Compressor, x: Tensor, rng: Stream) -> Tensor:
    """C(x), and a check that the rest is x - C(x)."""
    rows = x.clone().view(1, -1)
    wire = compressor.compress_(rows, rng, True)
    out = torch.zeros_like(rows)
    compressor.decompress_add_(wire, out, 1.0, rng)
    rest = x.double() - out[0].double()
    assert bool(rows.isfinite().all())
    torch.testing.assert_close(rows[0].double(), rest, rtol=1e-6, atol=1e-6 * float(x.abs().max().double()))
    return out[0]


def check_edges(compressor: Compressor) -> None:
    for _, x in edges():
        out = decoded(compressor, x, stream())
        assert bool(out.isfinite().all())
        if not bool(x.any()):
            assert not bool(out.any())


def check_contraction(compressor: Compressor, draws: int = 20, n: int = 1000) -> None:
    for name, x in inputs(n):
        delta = compressor.facts(n).contraction
        assert delta is not None
        errors = [float((x - decoded(compressor, x, stream(seed))).double().square().sum()) for seed in range(draws)]
        spread = 0.0 if compressor.facts(n).deterministic else 5 * float(torch.tensor(errors).std()) / math.sqrt(draws)
        assert sum(errors) / draws - spread <= (1 - delta) * (1 + 1e-5) * float(x.double().square().sum()), name


def check_unbiased(compressor: Compressor, x: Tensor, variance: Tensor, draws: int = 1024) -> None:
    """``variance [n]``: of each number, by the paper's formula."""
    total = torch.zeros_like(x, dtype=torch.float64)
    for seed in range(draws // 64):  # 64 rows at a time are 64 independent draws
        rows = x.expand(64, -1).clone()
        wire = compressor.compress_(rows, stream(seed), False)
        out = torch.zeros_like(rows)
        compressor.decompress_add_(wire, out, 1.0, stream(seed))
        total += out.double().sum(0)
    off = (total / draws - x.double()).abs()
    assert bool((off <= 6 * (variance / draws).sqrt() + 1e-5 * x.double().abs()).all()), float(off.max())


def check_corruption(compressor: Compressor, n: int = 300, trials: int = 150) -> None:
    """A payload with a wrong byte, or cut off, is refused, or decodes to finite numbers."""
    x = torch.randn(n, generator=generator(3))
    good = compressor.compress_(x.clone()[None], stream(), False).view(torch.uint8)
    for trial in range(trials):
        bad = good.clone()
        at = int(torch.randint(0, good.shape[1], (), generator=generator(trial)))
        bad[0, at] ^= 1 + trial % 255
        out = torch.zeros(1, n)
        try:
            compressor.decompress_add_(bad, out, 1.0, stream())
        except PayloadError as error:
            assert "field" in str(error) or "payload" in str(error)  # noqa: PT017  # both outcomes are right
        else:
            assert bool(out.isfinite().all())
    for cut in (1, 4, good.shape[1] // 2, good.shape[1]):
        with pytest.raises(PayloadError):
            compressor.decompress_add_(good[:, : good.shape[1] - cut], torch.zeros(1, n), 1.0, stream())


def run(
    method: Method, xs: list[Tensor], states: list | None = None, step: int = 0, keep: bool = True
) -> list[Exchanged]:
    """A step of all workers."""
    world = len(xs)
    states = [method.init(x) for x in xs] if states is None else states
    return simulate(
        [
            method.exchange(x.clone(), state, Peer(rank, world, step, "x", lent=Lent(keep_rest=keep)))
            for rank, (x, state) in enumerate(zip(xs, states, strict=True))
        ]
    )


def check_exchange(method: Method, make: Callable[[], Tensor] | None = None) -> None:
    """Agreement and conservation, and an inf on one rank."""
    for world in WORLDS:
        xs = [torch.randn(23, 17, generator=generator(rank)) for rank in range(world)]
        outs = run(method, xs)
        assert all(torch.equal(out.mean, outs[0].mean) for out in outs)
        sent = sum(x.double() - out.rest.double() for x, out in zip(xs, outs, strict=True)) / world
        torch.testing.assert_close(sent, outs[0].mean.double(), rtol=1e-4, atol=1e-5)
        xs[-1][3, 3] = math.inf
        states = [method.init(x) for x in xs]
        for out, state in zip(run(method, xs, states), states, strict=True):
            assert not out.finite
            assert bool(out.mean.isnan().all())
            assert out.state == state


def check_nothing_lost(method: Method, steps: int = 12, world: int = 3) -> None:
    """With error feedback: the sum of means plus the average memory is the sum of average gradients."""
    gen = generator(5)
    xs = [torch.zeros(23, 17)] * world
    states = [method.init(x) for x in xs]
    given, applied = torch.zeros(23, 17, dtype=torch.float64), torch.zeros(23, 17, dtype=torch.float64)
    for step in range(steps):
        xs = [torch.randn(23, 17, generator=gen) for _ in range(world)]
        outs = run(method, xs, states, step, keep=False)
        states = [out.state for out in outs]
        given += sum(x.double() for x in xs) / world
        applied += outs[0].mean.double()
    owed = sum(method.owed(state).double() for state in states) / world
    torch.testing.assert_close(applied + owed, given, rtol=1e-4, atol=1e-4)
