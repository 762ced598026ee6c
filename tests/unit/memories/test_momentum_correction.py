from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.errors import CompositionError, ConfigurationError
from grace.memories import MomentumCorrection
from grace.run.groups import is_uncompressed
from grace.run.simulate import simulate


def run(method: Method, gradients: list[list[Tensor]], states: list | None = None) -> tuple[list[Tensor], list]:
    """gradients[step][rank] -> the means, and the states at the end."""
    world = len(gradients[0])
    states = states or [method.init(gradients[0][0]) for _ in range(world)]
    means = []
    for step, xs in enumerate(gradients):
        outs = simulate([method.exchange(x.clone(), states[r], Peer(r, world, step)) for r, x in enumerate(xs)])
        assert all(torch.equal(out.mean.view(torch.uint8), outs[0].mean.view(torch.uint8)) for out in outs)
        means.append(outs[0].mean.clone())
        states = [out.state for out in outs]
    return means, states


def gradients(steps: int, world: int, *shape: int) -> list[list[Tensor]]:
    g = torch.Generator().manual_seed(7)
    return [[torch.randn(shape, generator=g) for _ in range(world)] for _ in range(steps)]


def test_vector_of_the_specification():
    method = MomentumCorrection(grace.Allgather(grace.TopK(0.5)), momentum=0.9)
    means, states = run(method, [[torch.tensor([1.0, 0.1])], [torch.tensor([0.0, 0.1])]])
    assert torch.equal(means[0], torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(means[1], torch.tensor([0.0, 0.29]))
    (u, v), _ = states[0]
    assert torch.equal(u, torch.zeros(2))
    assert torch.equal(v, torch.zeros(2))


def test_unmasked_state_after_the_first_step():
    method = MomentumCorrection(grace.Allgather(grace.TopK(0.5)), momentum=0.9, masking=False)
    _, [((u, v), _)] = run(method, [[torch.tensor([1.0, 0.1])]])
    torch.testing.assert_close(u, torch.tensor([1.0, 0.1]))
    torch.testing.assert_close(v, torch.tensor([0.0, 0.1]))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_sent_plus_kept_is_the_sum_of_momenta(world, nesterov):
    """Without masking: sum of means + mean of v = the sum of updates of torch's own SGD with momentum."""
    method = MomentumCorrection(grace.Allgather(grace.TopK(0.1)), momentum=0.8, nesterov=nesterov, masking=False)
    steps = gradients(6, world, 9, 7)
    means, states = run(method, steps)
    weight = torch.zeros(9, 7, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=0.8, nesterov=nesterov)
    # the published recursion is u = m (u + g), that of torch d = g + m b with b = m b + g: equal from the first step on
    for xs in steps:
        weight.grad = torch.stack(xs).double().mean(0)
        sgd.step()
    kept = torch.stack([v for (_, v), _ in states]).double().mean(0)
    torch.testing.assert_close(
        torch.stack(means).double().sum(0) + kept, -weight.detach(), rtol=1e-5, atol=1e-5 * len(steps)
    )


def test_momentum_zero_is_error_feedback():
    steps = gradients(5, 3, 40)
    inner = grace.Allgather(grace.TopK(0.1))
    own, states = run(MomentumCorrection(inner, momentum=0.0), steps)
    theirs, memories = run(grace.ErrorFeedback(inner), steps)
    assert all(torch.equal(a, b) for a, b in zip(own, theirs, strict=True))
    assert all(torch.equal(v, e) for ((_, v), _), (e, _) in zip(states, memories, strict=True))


def test_masking_forgets_the_velocity_of_what_was_sent_and_no_other():
    method = MomentumCorrection(grace.Allgather(grace.TopK(0.25)))
    x = torch.tensor([1.0, -4.0, 2.0, 3.0])
    _, [((u, v), _)] = run(method, [[x]])
    assert torch.equal(u, torch.tensor([1.0, 0.0, 2.0, 3.0]))
    assert torch.equal(v, u)


@pytest.mark.parametrize("nesterov", [False, True])
def test_uncompressed_tensors_have_plain_momentum(nesterov):
    method = grace.method("none:memory=dgc", momentum=0.7, nesterov=nesterov)
    steps = gradients(5, 2, 11)
    means, states = run(method, steps)
    weight = torch.zeros(11, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=0.7, nesterov=nesterov)
    for xs in steps:
        weight.grad = torch.stack(xs).mean(0)
        sgd.step()
    torch.testing.assert_close(torch.stack(means).sum(0), -weight.detach())
    assert all(not v.any() for (_, v), _ in states)


def test_clips_to_its_share_of_the_norm():
    method = MomentumCorrection(grace.Allgather(grace.TopK(1.0)), momentum=0.0, clip=1.0)
    xs = [torch.full((4,), 3.0), torch.full((4,), 1e-3), torch.full((4,), 1e38), torch.full((4,), -5.0)]
    means, _ = run(method, [xs])
    share = 0.5 / 2  # clip / sqrt(W), over sqrt(n)
    torch.testing.assert_close(means[0], torch.full((4,), (share + 1e-3 + share - share) / 4))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_nothing_is_committed_where_some_rank_is_not_finite(bad):
    method = MomentumCorrection(grace.Allgather(grace.TopK(0.3)), clip=10.0)
    good = gradients(1, 2, 10)
    _, states = run(method, good)
    before = [(u.clone(), v.clone()) for (u, v), _ in states]
    means, states = run(method, [[torch.ones(10), torch.full((10,), bad)]], states)
    assert means[0].isnan().all()
    assert all(torch.equal(u, a) and torch.equal(v, b) for ((u, v), _), (a, b) in zip(states, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    method = MomentumCorrection(grace.Allgather(grace.TopK(0.5)))
    means, [((u, v), _)] = run(method, [[torch.tensor([1.0, -3.0], dtype=dtype)]])
    assert means[0].dtype == dtype
    assert u.dtype == v.dtype == torch.promote_types(dtype, torch.float32)
    assert u.tolist() == [1.0, 0.0]
    assert v.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("spec", ["topk:memory=dgc", "none:memory=dgc", "dgc", "sketchedsgd"])
def test_empty_tensors(spec):
    means, _ = run(grace.method(spec), [[torch.zeros(0, 3)] * 2])
    assert means[0].shape == (0, 3)


def test_owes_what_it_has_not_sent():
    method = MomentumCorrection(grace.Allgather(grace.TopK(0.5)))
    _, [state] = run(method, [[torch.tensor([2.0, 1.0])]])
    assert torch.equal(method.owed(state), torch.tensor([0.0, 1.0]))


def test_compositions_and_knobs():
    inner = grace.Allgather(grace.TopK(0.1))
    for knobs in (
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"clip": 0.0},
        {"clip": math.inf},
        {"nesterov": 1},
        {"masking": 2},
    ):
        with pytest.raises(ConfigurationError):
            MomentumCorrection(inner, **knobs)
    for impossible in (grace.TopK(0.1), grace.Allgather(grace.SignSGD()), grace.ErrorFeedback(inner)):
        with pytest.raises(CompositionError):
            MomentumCorrection(impossible)
    with pytest.raises(CompositionError):
        grace.ErrorFeedback(MomentumCorrection(inner))
    assert grace.method("topk:ratio=0.1,memory=dgc,momentum=0.5") == MomentumCorrection(inner, 0.5)


# ---- tensors that go uncompressed beside it -------------------------------------------------------------------------
def check_small_tensors(spec: str, momentum: float, nesterov: bool = False) -> None:
    """A bias and a small matrix beside this method move as under torch's own SGD with this momentum."""
    sim = grace.Simulator(spec, world=2)
    for name, shape in (("bias", (30,)), ("small", (4, 5))):
        weight = torch.zeros(shape, requires_grad=True)
        sgd = torch.optim.SGD([weight], lr=1.0, momentum=momentum, nesterov=nesterov)
        moved = torch.zeros(shape)
        for xs in gradients(10, 2, *shape):
            moved += sim.step({name: [x.clone() for x in xs]})[name]
            weight.grad = torch.stack(xs).mean(0)
            sgd.step()
        torch.testing.assert_close(moved, -weight.detach(), rtol=1e-5, atol=1e-5)


SMALL = [
    ("dgc", 0.9, False),
    ("dgc:ratio=0.01,momentum=0.8,nesterov=true,masking=false", 0.8, True),
    ("dgc:ratio=linear(0.1->0.01, 10 steps)", 0.9, False),
    ("sketchedsgd", 0.9, False),
    ("sketchedsgd:momentum=0", 0.0, False),
    ("topk:memory=dgc", 0.9, False),
    ("topk", 0.0, False),
]


@pytest.mark.parametrize(("spec", "momentum", "nesterov"), SMALL)
def test_small_tensors_beside_it_have_the_same_momentum(spec: str, momentum: float, nesterov: bool) -> None:
    check_small_tensors(spec, momentum, nesterov)


@pytest.mark.parametrize(
    "mutant",
    [lambda self, plain: plain, lambda self, plain: MomentumCorrection(plain)],
    ids=["no momentum", "the default momentum"],
)
def test_mutants_of_that_are_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MomentumCorrection, "uncompressed", mutant)
    with pytest.raises(AssertionError):
        check_small_tensors("dgc:momentum=0.8", 0.8)


def test_ten_gradients_of_1_move_a_bias_as_in_the_authors_code() -> None:
    sim = grace.Simulator("dgc", world=2)
    moved = sum(float(sim.step({"b": [torch.zeros(3), torch.full((3,), 2.0)]})["b"][0]) for _ in range(10))
    assert moved == pytest.approx(41.3811, rel=1e-5)  # without momentum it was 10


@pytest.mark.parametrize(
    ("spec", "small"),
    [
        ("dgc", "none:memory=dgc"),
        ("sketchedsgd:momentum=0.5,clip=2", "none:momentum=0.5,clip=2,memory=dgc"),
        ("dgc:momentum=0,clip=2", "none:momentum=0,clip=2,memory=dgc"),
        ("dgc:momentum=0", "none"),
        ("dgc:memory=residual", "none"),
        ("dgc:start=5", "none:memory=dgc,start=5"),
        ("topk:start=5", "none"),
        ("dgc:machine=2", "none:memory=dgc"),
        ("topk:machine=2", "none"),
        (
            "dgc:momentum=linear(0.5->0.9, 10 steps),clip=3",
            "none:memory=dgc,momentum=linear(0.5->0.9, 10 steps),clip=3",
        ),
        ("topk:ratio=linear(0.1->0.01, 10 steps)", "none"),
    ],
)
def test_the_method_of_small_tensors(spec: str, small: str) -> None:
    method = grace.Policy.of(spec).method_for("b", torch.empty(7), 0)
    assert grace.spell(method) == small
    assert grace.method(small) == method
    assert is_uncompressed(method)


def test_a_policy_of_rules_stays_as_it_is() -> None:
    policy = grace.Policy([("*.bias", "none"), ("*", "dgc")])
    assert grace.spell(policy.method_for("fc.bias", torch.empty(7), 0)) == "none"
    assert grace.spell(policy.method_for("norm", torch.empty(7), 0)) == "dgc"
