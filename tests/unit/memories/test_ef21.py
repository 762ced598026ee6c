"""EF21 and EF21 with momentum, against the papers' recursions and hand-worked numbers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import grace
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.errors import CompositionError, ConfigurationError
from grace.memories import EF21, EF21M
from grace.run.simulate import simulate
from grace.run.simulator import Simulator
from grace.transports.traced import Tracer

ALL = "*"


def steps(method: Method, inputs: list[list[Tensor]], states: list | None = None) -> list[list[Exchanged]]:
    """``inputs[t][rank]`` -> the results of all steps and ranks."""
    world = len(inputs[0])
    states = states or [method.init(x) for x in inputs[0]]
    outs = []
    for t, xs in enumerate(inputs):
        runs = [method.exchange(x.clone(), states[r], Peer(r, world, t, "x")) for r, x in enumerate(xs)]
        outs.append(simulate(runs))
        states = [out.state for out in outs[-1]]
    return outs


def rand(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_vector_of_the_paper_from_h_zero() -> None:
    method = EF21(grace.Allgather(grace.TopK(0.5)))
    state = method.init(torch.zeros(2))._replace(started=1)  # h = 0 instead of the dense first step
    outs = steps(method, [[torch.tensor([1.0, 3.0])]] * 2, [state])
    assert outs[0][0].mean.tolist() == [0, 3]
    assert outs[1][0].mean.tolist() == [1, 3]


def test_vector_with_momentum() -> None:
    method = EF21M(grace.Allgather(grace.TopK(0.5)), eta=0.5)
    outs = steps(method, [[torch.tensor([2.0, 0.0])], [torch.tensor([0.0, 4.0])]])
    assert outs[0][0].mean.tolist() == [2, 0]
    state = outs[1][0].state
    assert state.velocity.tolist() == [1, 2]
    assert state.local.tolist() == state.shared.tolist() == outs[1][0].mean.tolist() == [2, 2]


@pytest.mark.parametrize("spec", ["topk:ratio=0.2,memory=ef21", "topk:ratio=0.2,memory=ef21m,eta=0.3",
                                  "efsignsgd:memory=ef21,block=8", "qsgd:bits=3,memory=ef21,bucket=16",
                                  "randomk:ratio=0.3,memory=ef21m"])  # fmt: skip
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_shared_estimate_is_the_mean_of_the_local_ones(spec: str, world: int) -> None:
    method = grace.method(spec)
    inputs = [[rand(7, 9, seed=100 * t + r) for r in range(world)] for t in range(12)]
    for outs in steps(method, inputs):
        for out in outs:
            assert torch.equal(out.state.shared, outs[0].state.shared)
            assert torch.equal(out.mean, outs[0].mean)
        mean = torch.stack([out.state.local.double() for out in outs]).mean(0)
        torch.testing.assert_close(outs[0].state.shared.double(), mean, rtol=0, atol=2e-5)


@pytest.mark.parametrize("eta", [None, 0.4])
def test_the_recursion_written_densely(eta: float | None) -> None:
    """h += TopK(v - h), with plain tensors."""
    n, k, world = 40, 8, 3
    inputs = [[rand(n, seed=10 * t + r) for r in range(world)] for t in range(6)]
    knobs = "memory=ef21" if eta is None else f"memory=ef21m,eta={eta}"
    got = steps(grace.method(f"topk:ratio=0.2,{knobs}"), inputs)
    v = [x.clone() for x in inputs[0]]
    h = [x.clone() for x in inputs[0]]
    for t in range(1, 6):
        for r in range(world):
            v[r] = inputs[t][r] if eta is None else (1 - eta) * v[r] + eta * inputs[t][r]
            d = v[r] - h[r]
            keep = d.abs().argsort(descending=True)[:k]
            h[r][keep] += d[keep]
        torch.testing.assert_close(got[t][0].mean, sum(h) / world)


def test_a_constant_gradient_is_reached_exactly() -> None:
    g = torch.arange(1.0, 11.0)
    method = grace.method("topk:ratio=0.3,memory=ef21")
    state = method.init(g)._replace(started=1)
    outs = steps(method, [[g]] * 4, [state])  # ceil(10 / 3) steps
    assert not torch.equal(outs[2][0].mean, g)
    assert torch.equal(outs[3][0].mean, g)
    errors = [float((out[0].mean - g).square().sum()) for out in outs]
    assert all(after <= (1 - 0.3) * before + 1e-9 for before, after in itertools.pairwise(errors))


def test_eta_one_is_ef21() -> None:
    inputs = [[rand(30, seed=5 * t + r) for r in range(2)] for t in range(5)]
    first, second = (
        steps(grace.method(f"topk:ratio=0.1,{knobs}"), inputs) for knobs in ("memory=ef21", "memory=ef21m,eta=1")
    )
    assert all(torch.equal(a[0].mean, b[0].mean) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("memory", ["ef21", "ef21m"])
@pytest.mark.parametrize("bad_step", [0, 1])
def test_a_non_finite_gradient_changes_nothing(memory: str, bad_step: int) -> None:
    method = grace.method(f"topk:ratio=0.2,memory={memory}")
    inputs = [[rand(20, seed=t + 10 * r) for r in range(3)] for t in range(3)]
    states = [method.init(x) for x in inputs[0]]
    for t in range(bad_step):
        states = [out.state for out in steps(method, [inputs[t]], states)[0]]
    before = [[part.clone() if isinstance(part, Tensor) else part for part in state] for state in states]
    bad = [x.clone() for x in inputs[bad_step]]
    bad[1][3] = math.inf
    outs = steps(method, [bad], states)[0]
    assert all(not out.finite and bool(out.mean.isnan().all()) for out in outs)
    for out, parts in zip(outs, before, strict=True):
        for now, then in zip(out.state, parts, strict=True):
            assert torch.equal(now, then) if isinstance(now, Tensor) else now == then


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    inputs = [[rand(5, 6, seed=t + 10 * r).to(dtype) for r in range(2)] for t in range(3)]
    for outs in steps(grace.method("topk:ratio=0.5,memory=ef21"), inputs):
        assert outs[0].mean.dtype == dtype
        assert outs[0].state.shared.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("spec", ["topk:ratio=0.2,memory=ef21", "qsgd:memory=ef21m"])
def test_traffic_is_what_is_traced(spec: str) -> None:
    method = grace.method(spec)
    like = torch.zeros(50, 4)
    states = [method.init(like) for _ in range(3)]
    for t in range(2):
        tracers = [Tracer(r, 3) for r in range(3)]
        peers = [Peer(r, 3, t, "x") for r in range(3)]
        runs = [tracers[r].trace(method.exchange(rand(50, 4, seed=r), states[r], peers[r])) for r in range(3)]
        states = [out.state for out in simulate(runs)]
        assert [method.traffic(like, peer) for peer in peers] == [tracer.traffic for tracer in tracers]


@pytest.mark.parametrize(
    "spec", ["threshold:memory=ef21", "signsgd:memory=ef21", "powersgd:memory=ef21m", "randomk:scale=true,memory=ef21",
             "topk:communicator=scatterreduce,server_memory=true,memory=ef21"],
)  # fmt: skip
def test_what_is_no_contraction_is_refused(spec: str) -> None:
    with pytest.raises(CompositionError):
        grace.method(spec)


def test_unbiased_methods_are_scaled() -> None:
    assert grace.method("qsgd:memory=ef21").method.compressor.shrink
    assert grace.method("randomk:memory=ef21").method.compressor.scale is False


def test_a_memory_around_it_is_refused() -> None:
    with pytest.raises(CompositionError, match="itself a memory"):
        grace.ErrorFeedback(grace.method("topk:memory=ef21"))


@pytest.mark.parametrize("eta", [0, 1.5, -1, math.nan])
def test_eta_out_of_range(eta: float) -> None:
    with pytest.raises(ConfigurationError, match="eta"):
        grace.method("topk:memory=ef21m", eta=eta)


@pytest.mark.parametrize("spec", ["topk:memory=ef21", "topk:eta=0.5,memory=ef21m"])
def test_spelling_round_trips(spec: str) -> None:
    assert grace.spell(grace.method(spec)) == spec


def test_state_survives() -> None:
    policy = grace.Policy([(ALL, "topk:ratio=0.1,memory=ef21m")])
    inputs = [{"x": [rand(30, seed=3 * t + r) for r in range(2)]} for t in range(6)]
    like = {"x": torch.zeros(30)}
    whole, first, second = (Simulator(policy, 2) for _ in range(3))
    expected = [whole.step(x)["x"] for x in inputs]
    for x in inputs[:3]:
        first.step(x)
    second.load_state_dict(first.state_dict(), like)
    for x, mean in zip(inputs[3:], expected[3:], strict=True):
        assert torch.equal(second.step(x)["x"], mean)
