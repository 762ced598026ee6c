"""Server-side error feedback, and memories that follow the learning rate: nothing is lost, whoever owes it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import grace
from grace.contract.compressor import Compressor
from grace.contract.peer import Peer
from grace.errors import CompositionError, ConfigurationError, StateError
from grace.run.simulate import simulate
from grace.run.simulator import Simulator
from grace.run.worker import Worker

SERVERS = ("scatterreduce", "parameterserver")


def rand(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run(
    spec: str, world: int, shape: tuple[int, ...], lrs: list[float | None]
) -> tuple[list[Tensor], list[list[Tensor]], list[Tensor]]:
    """Means and gradients of all steps, and what each worker owes at the end."""
    sim = Simulator(grace.Policy([("*", spec)]), world)
    means, inputs = [], []
    for t, lr in enumerate(lrs):
        inputs.append([rand(*shape, seed=100 * t + r) for r in range(world)])
        means.append(sim.step({"x": inputs[-1]}, lr=lr)["x"])
    return means, inputs, [worker.take_debts().get("x", torch.zeros(shape)) for worker in sim.workers]


@pytest.mark.parametrize("communicator", SERVERS)
@pytest.mark.parametrize(
    "inner",
    ["efsignsgd:block=8", "topk:ratio=0.2", "qsgd:bits=2,memory=residual", "efsignsgd:block=8,memory=distef,mu=0"],
)
@pytest.mark.parametrize(("world", "shape"), [(1, (17,)), (2, (5, 5)), (3, (19,)), (8, (3,)), (8, (41,))])
def test_nothing_is_lost(communicator: str, inner: str, world: int, shape: tuple[int, ...]) -> None:
    means, inputs, owed = run(f"{inner},communicator={communicator},server_memory=true", world, shape, [None] * 7)
    sent = torch.stack(means).double().sum(0)
    owing = torch.stack(owed).double().mean(0)
    given = torch.stack([torch.stack(xs) for xs in inputs]).double().sum(0).mean(0)
    torch.testing.assert_close(sent + owing, given, rtol=0, atol=2e-5)


@pytest.mark.parametrize("communicator", SERVERS)
def test_what_is_owed_is_the_workers_memory_and_the_servers(communicator: str) -> None:
    """Read from outside, e alone misses what the servers owe; ``Method.owed`` has both."""
    sim = Simulator(grace.Policy([("*", f"efsignsgd:communicator={communicator},server_memory=true")]), 3)
    sent, given = torch.zeros(41, dtype=torch.float64), torch.zeros(41, dtype=torch.float64)
    for t in range(6):
        xs = [rand(41, seed=10 * t + r) for r in range(3)]
        given += torch.stack(xs).double().mean(0)
        sent += sim.step({"x": xs})["x"].double()
    held = [worker._states["x"] for worker in sim.workers]
    workers = torch.stack([state.memory for _, state in held]).double().mean(0)
    owed = torch.stack([method.owed(state) for method, state in held]).double().mean(0)
    assert float((sent + workers - given).abs().max()) > 0.1
    torch.testing.assert_close(sent + owed, given, rtol=0, atol=2e-6)


@pytest.mark.parametrize("communicator", SERVERS)
def test_the_recursion_written_densely(communicator: str) -> None:
    """The recursion of one block of scaled signs at each end, with plain tensors, W = 2: a = mean C(p) + d; send C(a); d = a -
    C(a).
    """

    def scaled_sign(x: Tensor, pieces: int) -> Tensor:
        return torch.cat([part.abs().mean() * part.sign() for part in x.chunk(pieces)])

    n, world = 16, 2
    pieces = world if communicator == "scatterreduce" else 1
    means, inputs, _ = run(f"efsignsgd:communicator={communicator},server_memory=true", world, (n,), [None] * 5)
    e, d = [torch.zeros(n) for _ in range(world)], torch.zeros(n)
    for t in range(5):
        average = torch.zeros(n)
        for r in range(world):
            p = inputs[t][r] + e[r]
            c = scaled_sign(p, pieces)
            e[r], average = p - c, average + c / world
        a = average + d
        out = scaled_sign(a, pieces)
        d = a - out
        torch.testing.assert_close(means[t], out)


def test_one_worker_compresses_twice() -> None:
    """W = 1: two memories in a row; scaled signs of scaled signs are exact, so the server owes nothing."""
    means, _, _ = run("efsignsgd:communicator=scatterreduce,server_memory=true", 1, (12,), [None] * 4)
    plain, _, _ = run("efsignsgd", 1, (12,), [None] * 4)
    assert all(torch.allclose(a, b) for a, b in zip(means, plain, strict=True))


@pytest.mark.parametrize("communicator", SERVERS)
def test_the_state_is_a_share(communicator: str) -> None:
    method = grace.method(f"efsignsgd:communicator={communicator},server_memory=true,memory=none")
    runs = [method.exchange(rand(10, seed=r), method.init(torch.zeros(10)), Peer(r, 4, 0, "x")) for r in range(4)]
    states = [out.state for out in simulate(runs)]
    if communicator == "scatterreduce":
        assert [state[0].numel() for state in states] == [3, 3, 3, 3]
        assert states[3][0][1:].tolist() == [0, 0]  # padding owes nothing
    else:
        assert [state is None for state in states] == [False, True, True, True]


@pytest.mark.parametrize("communicator", SERVERS)
def test_a_non_finite_gradient_changes_nothing(communicator: str) -> None:
    spec = f"efsignsgd:communicator={communicator},server_memory=true"
    sim, other = (Simulator(grace.Policy([("*", spec)]), 3) for _ in range(2))
    good = [{"x": [rand(14, seed=10 * t + r) for r in range(3)]} for t in range(2)]
    bad = {"x": [torch.full((14,), math.nan), *good[0]["x"][1:]]}
    for simulator in (sim, other):
        simulator.step(good[0])
    assert bool(sim.step(bad)["x"].isnan().all())
    other.step(good[0] | {"x": [torch.full((14,), math.inf)] * 3})
    assert torch.equal(sim.step(good[1])["x"], other.step(good[1])["x"])


@pytest.mark.parametrize("communicator", SERVERS)
def test_state_survives(communicator: str) -> None:
    policy = grace.Policy([("*", f"topk:ratio=0.2,communicator={communicator},server_memory=true,follow_lr=true")])
    inputs = [{"x": [rand(30, seed=3 * t + r) for r in range(3)]} for t in range(6)]
    whole, first, second = (Simulator(policy, 3) for _ in range(3))
    expected = [whole.step(x, lr=1 / (t + 1))["x"] for t, x in enumerate(inputs)]
    for t in range(3):
        first.step(inputs[t], lr=1 / (t + 1))
    saved = first.state_dict()
    second.load_state_dict(saved, {"x": torch.zeros(30)})
    for t in range(3, 6):
        assert torch.equal(second.step(inputs[t], lr=1 / (t + 1))["x"], expected[t])
    third = Simulator(policy, 3)
    third.load_state_dict(saved, {"x": torch.zeros(30)})  # what was saved has not moved on
    assert torch.equal(third.step(inputs[3], lr=1 / 4)["x"], expected[3])


def test_a_state_of_another_size_is_refused() -> None:
    method = grace.method("topk:communicator=scatterreduce,server_memory=true,memory=none")
    state = (torch.zeros(7), 0, 1, (7,), 0.0)
    with pytest.raises(StateError, match="7 numbers"):
        simulate([method.exchange(torch.ones(10), state, Peer(0, 1))])


def test_switching_away_loses_nothing() -> None:
    spec = "efsignsgd:block=8,communicator=scatterreduce,server_memory=true"
    sim = Simulator(grace.Policy([("*", spec)]), 3)
    total = torch.zeros(20, dtype=torch.float64)
    given = torch.zeros(20, dtype=torch.float64)
    for t in range(5):
        xs = [rand(20, seed=10 * t + r) for r in range(3)]
        given += torch.stack(xs).double().mean(0)
        if t == 4:
            sim.switch(grace.Policy([("*", "none")]))
        total += sim.step({"x": xs})["x"].double()
    torch.testing.assert_close(total, given, rtol=0, atol=1e-5)


def test_compositions() -> None:
    assert grace.spell(grace.method("topk:communicator=scatterreduce,server_memory=true")) == (
        "topk:server_memory=true,communicator=scatterreduce"
    )
    assert grace.ParameterServer(grace.TopK(), 1).server == 1
    with pytest.raises(CompositionError, match="averages"):
        grace.method("signsgd:communicator=scatterreduce,server_memory=true")
    with pytest.raises(ConfigurationError, match="server_memory"):
        grace.ScatterReduce(grace.TopK(), server_memory="yes")  # type: ignore[arg-type]
    scaled = grace.method("randomk:communicator=scatterreduce,server_memory=true,scale=true,memory=none")
    assert scaled._at(1) == grace.RandomK(scale=False)  # an average is scaled already
    method = grace.method("qsgd:communicator=scatterreduce,server_memory=true")
    first, second = method._at(0), method._at(1)
    assert isinstance(first, Compressor)
    assert not first.shrink
    assert second.shrink  # unbiased to the owner, a contraction from there


# ---- memories that follow the learning rate -------------------------------------------------------------------------
LRS = [0.0, 0.5, 0.5, 0.1, 0.0, 0.02, 0.3, 0.0]


@pytest.mark.parametrize("spec", ["efsignsgd:block=8,follow_lr=true", "topk:ratio=0.1,follow_lr=true",
                                  "efsignsgd:block=8,follow_lr=true,communicator=scatterreduce,server_memory=true",
                                  "topk:ratio=0.2,follow_lr=true,communicator=parameterserver,server_memory=true",
                                  "topk:ratio=0.1,follow_lr=true,communicator=scatterreduce",
                                  "efsignsgd:block=8,memory=distef,mu=0,follow_lr=true"])  # fmt: skip
@pytest.mark.parametrize("world", [1, 3])
def test_updates_lose_nothing_when_the_learning_rate_changes(spec: str, world: int) -> None:
    """sum lr mean + lr e = sum lr g, with the last lr that was not 0."""
    means, inputs, owed = run(spec, world, (21,), list(LRS))
    sent = sum(lr * mean.double() for lr, mean in zip(LRS, means, strict=True))
    given = sum(lr * torch.stack(xs).double().mean(0) for lr, xs in zip(LRS, inputs, strict=True))
    owing = 0.3 * torch.stack(owed).double().mean(0)
    torch.testing.assert_close(sent + owing, given, rtol=0, atol=2e-5)


def test_a_constant_rate_changes_nothing() -> None:
    plain, _, _ = run("topk:ratio=0.1", 2, (30,), [None] * 5)
    following, _, _ = run("topk:ratio=0.1,follow_lr=true", 2, (30,), [0.3] * 5)
    assert all(torch.equal(a, b) for a, b in zip(plain, following, strict=True))


def test_a_memory_that_does_not_follow_ignores_the_rate() -> None:
    spec = "efsignsgd:block=8,communicator=scatterreduce,server_memory=true"
    plain, _, _ = run(spec, 2, (30,), [None] * 4)
    other, _, _ = run(spec, 2, (30,), [0.4, 0.3, 0.2, 0.1])
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


@pytest.mark.parametrize("lr", [None, -1.0, math.nan, math.inf])
def test_the_rate_must_be_known(lr: float | None) -> None:
    with pytest.raises(ConfigurationError, match="learning rate"):
        run("topk:follow_lr=true", 2, (30,), [lr])


def test_dist_ef_written_densely() -> None:
    """Algorithm 3 of the paper, one block, W = 2, the learning rate changes."""
    mu, n, world, lrs = 0.9, 8, 2, [0.1, 0.1, 0.05, 0.2]

    def scaled_sign(x: Tensor) -> Tensor:
        return torch.cat([part.abs().mean() * part.sign() for part in x.chunk(world)])

    spec = "efsignsgd:communicator=scatterreduce,server_memory=true,memory=distef,follow_lr=true"
    means, inputs, _ = run(spec, world, (n,), list(lrs))
    m, e = [torch.zeros(n) for _ in range(world)], [torch.zeros(n) for _ in range(world)]
    server, last = torch.zeros(n), lrs[0]
    for t, lr in enumerate(lrs):
        average = torch.zeros(n)
        for r in range(world):
            m[r] = mu * m[r] + inputs[t][r]
            p = mu * m[r] + inputs[t][r] + last / lr * e[r]
            c = scaled_sign(p)
            e[r], average = p - c, average + c / world
        p = average + last / lr * server
        server = p - scaled_sign(p)
        torch.testing.assert_close(means[t], scaled_sign(p), rtol=1e-4, atol=1e-5)
        last = lr


def test_dist_ef_vector() -> None:
    method = grace.method("efsignsgd:block=2,memory=distef")
    x = torch.tensor([1.0, -3.0, 2.0, 2.0]) / 1.9  # m = g, so that p = 0.9 m + g
    out = simulate([method.exchange(x, method.init(x), Peer(0, 1, 0, "x"))])[0]
    torch.testing.assert_close(out.mean, torch.tensor([2.0, -2.0, 2.0, 2.0]))
    torch.testing.assert_close(out.state[1][0], torch.tensor([-1.0, -1.0, 0.0, 0.0]))
    with pytest.raises(ConfigurationError, match="mu"):
        grace.method("efsignsgd:memory=distef,mu=1")


def test_the_worker_tells_the_rate() -> None:
    worker = Worker(grace.Policy.of("topk:follow_lr=true"), 0, 1)
    worker.lr = 0.25
    assert worker.peer("x").lr == 0.25
