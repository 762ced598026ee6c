"""Shared parts of the tests of the quantizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.contract.compressor import Compressor
from grace.contract.lent import Lent
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.errors import ConfigurationError, PayloadError
from grace.memories import Memory
from grace.run.simulate import simulate
from grace.run.simulator import Simulator
from grace.transports.traced import Tracer

HUGE = 3e38
torch.set_num_threads(1)


@dataclass(frozen=True)
class Given:
    """A stream whose uniform numbers are given. Native kernels have no use for it: they want a key."""

    numbers: Sequence[float]
    rank: int = 0
    step: int = 0

    def uniform(self, n: int, device: object = None, first: int = 0) -> Tensor:
        assert first + n <= len(self.numbers)
        return torch.tensor(self.numbers[first : first + n])

    def lanes(self, n: int, device: object = None, first: int = 0) -> Tensor:
        return self.uniform(n, device, first).mul_(2.0**16).to(torch.int32)


def peer(step: int = 0, rank: int = 0, world: int = 1) -> Peer:
    return Peer(rank, world, step, "tensor", seed=7, lent=Lent(keep_rest=True))


def encoded(compressor: Compressor, rows: Tensor, step: int = 0) -> Tensor:
    """The wire of rows ``[b, n]``; also asserts that ``keep_rest`` leaves rows minus what the wire says."""
    who = peer(step)
    rng = who.shared(compressor.id) if compressor.randomness == "shared" else who.private(compressor.id).fork(0)
    rest = rows.clone()
    wire = compressor.compress_(rest, rng, True)
    assert torch.equal(wire, compressor.compress_(rows.clone(), rng, False))
    torch.testing.assert_close(rest, rows - decoded(compressor, wire, rows.shape[1], step), rtol=1e-5, atol=0)
    return wire


def decoded(compressor: Compressor, wire: Tensor, n: int, step: int = 0) -> Tensor:
    out = torch.zeros(wire.shape[0], n)
    compressor.decompress_add_(wire, out, 1.0, peer(step).shared(compressor.id))
    return out


def applied(compressor: Compressor, x: Tensor, step: int = 0) -> Tensor:
    """C(x) for ``x [n]`` or ``[b, n]``; asserts the declared payload."""
    rows = x.view(-1, x.shape[-1])
    wire = encoded(compressor, rows, step)
    payload = compressor.facts(x.shape[-1]).payload
    assert payload is None or wire.shape[1] * wire.element_size() == payload
    assert compressor.varies == (payload is None)
    return decoded(compressor, wire, x.shape[-1], step).view(x.shape)


def inputs(n: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(n)
    gaussian = torch.randn(n, generator=made)
    sign = torch.randn(n, generator=made).sign()
    return {
        "gaussian": gaussian,
        "log-normal": torch.randn(n, generator=made).mul(2).exp() * sign,
        "one-hot": torch.zeros(n).index_fill_(0, torch.tensor([n // 2]), -3.7),
        "constant": torch.full((n,), 0.3),
        "1 % dense": gaussian * (torch.rand(n, generator=made) < 0.01),
    }


def assert_unbiased(compressor: Compressor, draws: int = 1024, n: int = 33) -> None:
    """|mean - x| <= 6 sqrt(var/R) in every element, and the variance within the declared one."""
    facts = compressor.facts(n)
    assert facts.unbiased
    assert facts.variance is not None
    for label, x in inputs(n).items():
        rows = x.expand(draws, n).contiguous()
        got = applied(compressor, rows)
        bound = facts.variance * float(x.square().sum())
        limit = 6 * math.sqrt(bound / draws) + 1e-5 * float(x.abs().max())
        assert float((got.double().mean(0) - x).abs().max()) <= limit, label
        measured = float((got - x).square().sum(1).mean())
        assert measured <= bound * (1 + 6 / math.sqrt(draws)) + 1e-10, (label, measured, bound)


def assert_contracts(compressor: Compressor, sizes: Sequence[int] = (1, 5, 300), draws: int = 1) -> None:
    """E|x - C(x)|^2 <= (1 - delta) |x|^2, by the mean of so many draws."""
    for n in sizes:
        delta = compressor.facts(n).contraction
        assert delta is not None
        for label, x in inputs(n).items():
            error = applied(compressor, x.expand(draws, n).contiguous()) - x
            bound = (1 - delta) * float(x.double().square().sum())
            slack = 1 + 1e-5 if draws == 1 else 1 + 8 / math.sqrt(draws)
            assert float(error.double().square().sum(1).mean()) <= bound * slack + 1e-12, (label, n)


def assert_flags(compressor: Compressor, odd: bool = True, homogeneous: bool = True, idempotent: bool = True) -> None:
    for label, x in inputs(300).items():
        once = applied(compressor, x)
        assert not odd or torch.equal(applied(compressor, -x), -once), label
        assert not homogeneous or torch.equal(applied(compressor, x * 2.0**-7), once * 2.0**-7), label
        if idempotent:
            torch.testing.assert_close(applied(compressor, once), once, rtol=1e-6, atol=0, msg=label)


def assert_edges(compressor: Compressor, bounded: bool = True) -> None:
    """Zeros stay zeros; nothing overflows; with ``bounded`` no error exceeds a few times the largest number."""
    for n in (1, 2, 19, 1030):
        assert not applied(compressor, torch.zeros(n)).any()
        made = torch.Generator().manual_seed(n)
        tame = torch.randn(n, generator=made)
        for x in (
            tame * 1e-30,
            tame * 1e30,
            tame.sign() * HUGE,
            torch.full((n,), HUGE),
            tame.clamp(-1, 1) * HUGE,
            tame * 1e-41,
            torch.full((n,), 1e-45),
            -tame.abs(),
            torch.full((n,), -2.5),
            torch.full((n,), torch.finfo(torch.float32).max),
            torch.arange(n).remainder(2).float(),
        ):
            got = applied(compressor, x)
            assert bool(got.isfinite().all())
            if bounded:
                assert float((got.double() - x).abs().max()) <= 4.01 * float(x.abs().max()) + 1e-37


def assert_refuses_garbage(compressor: Compressor, n: int = 23) -> None:
    """Any corruption is a PayloadError, or decodes to finite numbers."""
    made = torch.Generator().manual_seed(3)
    wire = encoded(compressor, torch.randn(1, n, generator=made))
    width, refused = wire.shape[1], 0
    corrupt = [wire[:, :cut].contiguous() for cut in range(width)]
    for byte in range(width):
        for value in (0x7F, 0x80, 0xFF):
            damaged = wire.clone()
            damaged[0, byte] = value
            corrupt.append(damaged)
    corrupt += [torch.randint(0, 256, wire.shape, generator=made, dtype=torch.uint8) for _ in range(40)]
    for damaged in corrupt:
        try:
            got = decoded(compressor, damaged, n)
        except PayloadError:
            refused += 1
        else:
            assert bool(got.isfinite().all())
    assert refused >= width
    longer = torch.cat((wire, torch.zeros_like(wire)), 1)
    if compressor.varies:  # padding may follow
        assert torch.equal(decoded(compressor, longer, n), decoded(compressor, wire, n))
    else:
        with pytest.raises(PayloadError):
            decoded(compressor, longer, n)


def gradients(world: int, n: int, step: int) -> list[Tensor]:
    made = torch.Generator().manual_seed(1000 * step + world)
    return [torch.randn(n, generator=made) for _ in range(world)]


def assert_agrees_and_conserves(spec: str | Method[Any], n: int = 101, worlds: Sequence[int] = (1, 2, 3, 8)) -> None:
    """All ranks have the same mean, which is the average of x - rest; bytes are those declared. Inner method only."""
    method = grace.method(spec)
    inner = method.method if isinstance(method, Memory) else method
    for world in worlds:
        xs = gradients(world, n, 0)
        tracers = [Tracer(rank, world) for rank in range(world)]
        runs = [tracers[r].trace(inner.exchange(x.clone(), inner.init(x), peer(0, r, world))) for r, x in enumerate(xs)]
        outs = simulate(runs)
        for out in outs:
            assert torch.equal(out.mean, outs[0].mean)
        sent = torch.stack([x - out.rest for x, out in zip(xs, outs, strict=True)]).mean(0)
        torch.testing.assert_close(sent, outs[0].mean, rtol=1e-4, atol=1e-5)
        for rank, tracer in enumerate(tracers):
            declared = inner.traffic(xs[0], peer(0, rank, world))
            assert declared is None or declared == tracer.traffic


def assert_loses_nothing(spec: str | Method[Any], n: int = 101, worlds: Sequence[int] = (1, 3)) -> None:
    """The sum of means plus the average memory is the sum of average gradients; the error stays bounded."""
    for world in worlds:
        sim = Simulator(grace.Policy([("*", spec)]), world)
        given, got = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
        for step in range(6):
            xs = gradients(world, n, step)
            given += torch.stack(xs).double().mean(0)
            got += sim.step({"x": xs})["x"].double()
        owed = torch.stack([worker.take_debts()["x"] for worker in sim.workers]).double().mean(0)
        torch.testing.assert_close(got + owed, given, rtol=1e-4, atol=1e-4)


def assert_agrees_on_nonfinite(spec: str | Method[Any], n: int = 40) -> None:
    """A NaN or inf of one rank is everyone's, and the state stays as it was."""
    for bad in (math.nan, math.inf, -math.inf):
        sim = Simulator(grace.Policy([("*", spec)]), 3)
        sim.step({"x": gradients(3, n, 0)})
        before = [worker.state_dict()["states"] for worker in sim.workers]
        xs = gradients(3, n, 1)
        xs[1][n // 3] = bad
        assert bool(sim.step({"x": xs})["x"].isnan().all())
        assert repr(before) == repr([worker.state_dict()["states"] for worker in sim.workers])
        assert bool(sim.step({"x": gradients(3, n, 2)})["x"].isfinite().all())


def bits_per_element(spec: str | Method[Any], n: int = 1 << 16) -> float:
    """Traced: bytes that rank 0 sends to one other rank, in bits per element."""
    sim = Simulator(grace.Policy([("*", spec)]), 2)
    sim.step({"x": gradients(2, n, 0)})
    return sim.traffic[0].sent * 8 / n


def assert_refuses_knobs(make: Callable[..., object], **bad: Sequence[object]) -> None:
    for knob, values in bad.items():
        for value in values:
            with pytest.raises(ConfigurationError, match=rf"{knob}=.*legal"):
                make(**{knob: value})
