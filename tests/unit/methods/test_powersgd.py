"""PowerSGD: the vector worked by hand, projections, and matrices that are not worth it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace import Lent, Peer, PowerSGD
from grace.errors import ConfigurationError
from grace.run import Tracer, simulate


def exchanged(method: Any, xs: list[Tensor], states: list[Any], step: int = 0, keep_rest: bool = False) -> list[Any]:
    peers = [Peer(r, len(xs), step, "w", lent=Lent(keep_rest=keep_rest)) for r in range(len(xs))]
    return simulate([method.exchange(x.clone(), s, p) for x, s, p in zip(xs, states, peers, strict=True)])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_by_hand():
    """M = [[3, 0], [4, 0]], Q = [1, 0]: P = [3, 4] ~ [.6, .8], Q = [5, 0]: M exactly."""
    method, m = PowerSGD(rank=1, min_rate=0.1), torch.tensor([[3.0, 0.0], [4.0, 0.0]])
    run = method.exchange(m.clone(), torch.tensor([[1.0], [0.0]]), Peer(0, 1, lent=Lent(keep_rest=True)))
    p = next(run).buf.view(1, -1)
    torch.testing.assert_close(p / p.norm(), torch.tensor([[0.6, 0.8]]))
    q = run.send(p.clone()).buf.view(1, -1)
    torch.testing.assert_close(q.abs(), torch.tensor([[5.0, 0.0]]))
    with pytest.raises(StopIteration) as stop:
        run.send(q.clone())
    torch.testing.assert_close(stop.value.value.mean, m)
    torch.testing.assert_close(stop.value.value.rest, torch.zeros(2, 2), atol=1e-6, rtol=0)


LOW_RANK = (
    "powersgd:rank=2,min_rate=0.1",
    "acpsgd:rank=2,min_rate=0.1",
    "gradzip:rank=2,min_rate=0.1",
    "gradiveq:length=8,dims=2,collect=1,use=9",
)


@pytest.mark.parametrize("spec", LOW_RANK)
def test_nothing_of_a_float64_is_lost(spec: str):
    """The rest has what float32 cannot hold, too."""
    method = grace.method(f"{spec},memory=none")
    x = normal(12, 9).double() + 1e-9 * normal(12, 9, seed=1).double()
    rests = []
    for given in (x, x.float().double()):
        states = [method.init(given)]
        for step in range(2):
            (out,) = exchanged(method, [given], states, step, keep_rest=True)
            states = [out.state]
        rests.append(out.rest)
    torch.testing.assert_close(rests[0] - rests[1], x - x.float(), rtol=0, atol=1e-15)


@pytest.mark.parametrize("spec", LOW_RANK)
def test_strided_gradients_have_the_means_of_others(spec: str):
    method, x = grace.method(f"{spec},memory=none"), normal(12, 9)
    states, others = [method.init(x)], [method.init(x)]
    for step in range(3):
        (out,), (other,) = exchanged(method, [x], states, step), exchanged(method, [x.mT.contiguous().mT], others, step)
        states, others = [out.state], [other.state]
        assert torch.equal(out.mean, other.mean)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_the_mean_is_a_projection_of_the_average(rank: int):
    xs = [normal(12, 9, seed=r) for r in range(3)]
    method = PowerSGD(rank=rank, min_rate=0.01)
    states = [method.init(x) for x in xs]
    average = torch.stack(xs).mean(0)
    for step in range(3):
        outs = exchanged(method, xs, states, step)
        states = [out.state for out in outs]
        mean = outs[0].mean
        assert int(torch.linalg.matrix_rank(mean, rtol=1e-4)) <= rank
        assert float((average - mean).norm()) <= float(average.norm())
        torch.testing.assert_close(float((mean * (average - mean)).sum()), 0.0, atol=1e-3, rtol=0)


def test_warm_starts_converge_to_the_best_approximation():
    x = normal(20, 15)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    best = u[:, :2] * s[:2] @ v[:2]
    method = PowerSGD(rank=2, min_rate=0.1)
    states = [method.init(x)]
    for step in range(200):
        (out,) = exchanged(method, [x], states, step)
        states = [out.state]
    torch.testing.assert_close(out.mean, best, atol=1e-2, rtol=1e-2)


def test_a_rank_deficient_matrix_is_recovered_and_zero_stays_zero():
    method = PowerSGD(rank=4, min_rate=0.01)
    x = normal(10, 2) @ normal(2, 8, seed=1)
    states = [method.init(x)]
    (out,) = exchanged(method, [x], states)
    torch.testing.assert_close(out.mean, x, atol=1e-5, rtol=1e-5)
    (zero,) = exchanged(method, [torch.zeros(10, 8)], [out.state], 1)
    assert torch.equal(zero.mean, torch.zeros(10, 8))
    (again,) = exchanged(method, [x], [zero.state], 2)
    assert bool(again.mean.isfinite().all())
    (after,) = exchanged(method, [x], [again.state], 3)
    torch.testing.assert_close(after.mean, x, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_does_not_matter(scale: float):
    method, x = PowerSGD(rank=2, min_rate=0.1), normal(16, 12)
    (plain,), (scaled,) = (exchanged(method, [m], [method.init(m)]) for m in (x, x * scale))
    torch.testing.assert_close(scaled.mean / scale, plain.mean, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "compressed"),
    [((100,), False), ((), False), ((0, 5), False), ((8, 8), False), ((64, 64), True), ((64, 8, 3, 3), True)],
)
def test_matrices_that_are_worth_it(shape: tuple[int, ...], compressed: bool):
    method = PowerSGD(rank=4)
    x = normal(*shape)
    tracer = Tracer(0, 4)
    tracers = [tracer, *(Tracer(r, 4) for r in range(1, 4))]
    runs = [method.exchange(x.clone(), method.init(x), Peer(r, 4)) for r in range(4)]
    outs = simulate([t.trace(run) for t, run in zip(tracers, runs, strict=True)])
    assert (method.init(x) is not None) is compressed
    if compressed:
        m, l = shape[0], math.prod(shape[1:])
        assert tracer.traffic == grace.Traffic(2, 6 * 4 * (m + l) * 4 // 4, 6 * 4 * (m + l) * 4 // 4)
        assert method.facts(x).payload == 4 * 4 * (m + l)
    else:
        torch.testing.assert_close(outs[0].mean, x)


def test_all_ranks_start_with_the_same_subspace():
    like = torch.empty(64, 64)
    assert torch.equal(PowerSGD().init(like), PowerSGD().init(like))  # type: ignore[arg-type]
    assert PowerSGD(rank=100, min_rate=0.01).init(torch.empty(6, 9)).shape == (9, 6)  # type: ignore[union-attr]


def test_start_step_goes_uncompressed_before():
    method, x = PowerSGD(rank=1, min_rate=0.1, start_step=2), normal(9, 9)
    states = [method.init(x)]
    errors = []
    for step in range(4):
        (out,) = exchanged(method, [x], states, step)
        states = [out.state]
        errors.append(float((out.mean - x).norm()))
    assert errors[:2] == [0.0, 0.0]
    assert min(errors[2:]) > 0.1


def test_without_a_warm_start_each_step_has_a_subspace_of_its_own():
    method, x = PowerSGD(rank=1, min_rate=0.1, warm_start=False), normal(9, 9)
    (first,), (second,) = (exchanged(method, [x], [method.init(x)], step) for step in (0, 1))
    assert not torch.allclose(first.mean, second.mean)


def test_the_rest_is_local():
    """x - rest has rank r on each worker, and single memories stay small over many steps of noise."""
    method = grace.ErrorFeedback(PowerSGD(rank=2, min_rate=0.1))
    states = [method.init(torch.empty(16, 12)) for _ in range(4)]
    for step in range(300):
        xs = [normal(16, 12, seed=4 * step + r) for r in range(4)]
        states = [out.state for out in exchanged(method, xs, states, step)]
    assert max(float(state[0].norm()) for state in states) < 100


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"rank": 0}, "powersgd: rank=0 is out of range; legal: a whole number >= 1"),
        ({"rank": 1.5}, r"powersgd: rank=1\.5 is out of range"),
        ({"min_rate": 0}, "powersgd: min_rate=0 is out of range; legal: 0 < min_rate < inf"),
        ({"min_rate": math.nan}, "powersgd: min_rate=nan is out of range"),
        ({"start_step": -1}, "powersgd: start_step=-1 is out of range; legal: a whole number >= 0"),
        ({"warm_start": "no"}, "powersgd: warm_start='no' is out of range; legal: True, False"),
    ],
)
def test_knobs_are_checked(knobs: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        PowerSGD(**knobs)
