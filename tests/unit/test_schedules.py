"""Knobs that follow the step or the epoch, and methods that start later."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import grace
from grace.contract.peer import Peer
from grace.errors import CompositionError, ConfigurationError
from grace.registry import split_methods
from grace.run.simulate import simulate
from grace.run.simulator import Simulator
from grace.run.worker import Worker
from grace.schedules import Delayed, Schedule, Scheduled


def rand(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- the values -----------------------------------------------------------------------------------------------------
def test_warmup_is_that_of_deep_gradient_compression() -> None:
    schedule = Schedule.parse("warmup(0.25->0.001, 4 epochs)")
    got = [schedule.at(step, 100) for step in (0, 99, 100, 200, 300, 399, 400, 10**6)]
    assert got == pytest.approx([0.25, 0.25, 0.0629, 0.01581, 0.003976, 0.003976, 0.001, 0.001], rel=1e-3)


def test_linear() -> None:
    schedule = Schedule.parse("linear(0.5->0.1, 4 steps)")
    assert [schedule.at(step) for step in range(6)] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1])


def test_exponential() -> None:
    schedule = Schedule.parse("exponential(1.0->0.0625, 4 steps)")
    assert [schedule.at(step) for step in range(6)] == pytest.approx([1, 0.5, 0.25, 0.125, 0.0625, 0.0625])


def test_epochs_are_fractions_of_steps() -> None:
    assert Schedule.parse("linear(1.0->0.5, 2 epochs)").at(5, 10) == pytest.approx(0.875)


def test_stairs() -> None:
    schedule = Schedule.parse("steps(0:0.25, 100:0.01)")
    assert [schedule.at(step) for step in (0, 99, 100, 500)] == [0.25, 0.25, 0.01, 0.01]
    epochs = Schedule.parse("epochs(0:8, 2:4)")
    assert [epochs.at(step, 10) for step in (19, 20)] == [8, 4]


def test_whole_ends_give_whole_numbers() -> None:
    schedule = Schedule.parse("linear(8->2, 12 steps)")
    values = [schedule.at(step) for step in range(14)]
    assert all(isinstance(value, int) for value in values)
    assert values[0] == 8
    assert values[-1] == 2
    assert set(schedule.values()) == set(range(2, 9))


@pytest.mark.parametrize("text", ["warmup(0.25->0.001, 4 epochs)", "linear(8->2, 100 steps)", "steps(0:0.25, 100:0.01)",
                                  "exponential(1e-05->0.5, 2.5 epochs)", "epochs(0:8, 2:4)",
                                  "linear(-1->1, 7 steps)"])  # fmt: skip
def test_round_trip(text: str) -> None:
    assert str(Schedule.parse(text)) == text
    assert Schedule.parse(str(Schedule.parse(text))) == Schedule.parse(text)


@pytest.mark.parametrize(
    "text", ["linear(1, 4 steps)", "linear(1->2, 4)", "linear(1->2, 4 years)", "warmup(1->0, 4 steps)", "steps(1:2)",
             "steps(0:1, 0:2)", "steps(0:1, 5:2, 3:4)", "linear(1->nan, 4 steps)", "linear(1->2, 0 steps)", "steps()",
             "exponential(-1->1, 4 steps)", "linear(a->b, 4 steps)", "linear(1->2, -4 steps)", "cosine(1->2, 4 steps)"],
)  # fmt: skip
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Schedule.parse(text)


# ---- methods --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["topk:ratio=warmup(0.25->0.001, 4 epochs)", "qsgd:levels=steps(0:127, 100:7)",
                                  "topk:ratio=linear(0.5->0.1, 10 steps),memory=none,start=3", "topk:start=1000",
                                  "efsignsgd:beta=linear(0.5->1.0, 10 steps)"])  # fmt: skip
def test_strings_round_trip(text: str) -> None:
    method = grace.method(text)
    assert grace.spell(method) == text
    assert grace.method(grace.spell(method)) == method
    assert hash(method) == hash(grace.method(text))


def test_python_form() -> None:
    text = "linear(0.5->0.1, 10 steps)"
    assert grace.method("topk", ratio=text) == grace.method("topk", ratio=Schedule.parse(text))
    assert grace.method("topk", ratio=text) == grace.method(f"topk:ratio={text}")
    assert split_methods(f"topk:ratio={text},memory=none,qsgd") == [f"topk:ratio={text},memory=none", "qsgd"]


def test_the_method_of_a_step() -> None:
    method = grace.method("topk:ratio=steps(0:0.5, 2:0.1)")
    assert isinstance(method, Scheduled)
    assert method.at(1) == grace.method("topk:ratio=0.5")
    assert method.at(2) == grace.method("topk:ratio=0.1")
    assert method.at(2) is method.at(3)


def test_a_scheduled_method_is_the_method_of_each_step_with_one_state() -> None:
    inputs = [[rand(60, seed=10 * t + r) for r in range(2)] for t in range(6)]
    sim = Simulator(grace.Policy([("*", "topk:ratio=steps(0:0.5, 2:0.1, 4:0.3)")]), 2)
    by_hand = [torch.zeros(60) for _ in range(2)]
    for t, xs in enumerate(inputs):
        k = [30, 30, 6, 6, 18, 18][t]
        mean = torch.zeros(60)
        for r, x in enumerate(xs):
            p = x + by_hand[r]
            keep = p.abs().argsort(descending=True)[:k]
            mean[keep] += p[keep] / 2
            by_hand[r] = p.index_fill(0, keep, 0.0)
        torch.testing.assert_close(sim.step({"x": xs})["x"], mean)


def test_traffic_follows() -> None:
    method = grace.method("topk:ratio=steps(0:0.5, 2:0.1),memory=none")
    like, peers = torch.zeros(1000), [Peer(0, 2, step, "x") for step in (0, 2)]
    assert [method.traffic(like, peer) for peer in peers] == [
        grace.method(f"topk:ratio={ratio},memory=none").traffic(like, peers[0]) for ratio in (0.5, 0.1)
    ]


def test_facts_hold_at_every_value() -> None:
    facts = grace.method("topk:ratio=linear(0.5->0.1, 9 steps)").facts(torch.zeros(100))
    assert facts.contraction == pytest.approx(0.1)
    assert facts.payload is None


@pytest.mark.parametrize("text", ["topk:ratio=linear(0.5->1.5, 4 steps)", "qsgd:bits=linear(1->4, 4 steps)",
                                  "qsgd:bits=linear(2->4.0, 4 steps)", "topk:ratio=steps(0:0.5, 3:0.0)"])  # fmt: skip
def test_values_out_of_range_are_found_at_construction(text: str) -> None:
    with pytest.raises(ConfigurationError, match="out of range"):
        grace.method(text)


def test_a_schedule_of_the_shape_of_a_state_is_refused() -> None:
    with pytest.raises(CompositionError, match="shape of the state"):
        grace.method("powersgd:rank=steps(0:4, 10:2)")
    unwise = grace.method("powersgd:rank=2,min_rate=steps(0:0.5, 10:2.0)")  # the same for most shapes, not for all
    with pytest.raises(CompositionError, match="shape of the state"):
        unwise.init(torch.zeros(6, 6))


def test_epochs_need_their_length() -> None:
    spec = "topk:ratio=warmup(0.25->0.01, 4 epochs)"
    with pytest.raises(ConfigurationError, match="steps_per_epoch"):
        Simulator(spec, 2)
    with pytest.raises(ConfigurationError, match="steps_per_epoch"):
        Worker(grace.Policy.of("topk"), 0, 1).switch(grace.Policy.of(f"{spec},start=7"))
    with pytest.raises(ConfigurationError, match="steps_per_epoch=0"):
        Simulator(spec, 2, steps_per_epoch=0)
    sim = Simulator(grace.Policy([("*", spec)]), 2, steps_per_epoch=1)
    kept = [int((sim.step({"x": [rand(100, seed=t)] * 2})["x"] != 0).sum()) for t in range(6)]
    assert kept == [25, 12, 5, 3, 1, 1]


def test_with_a_memory_of_ones_own_it_is_refused() -> None:
    with pytest.raises(CompositionError, match="as a knob"):
        grace.ErrorFeedback(grace.method("topk:ratio=linear(0.5->0.1, 4 steps),memory=none"))


def test_state_survives() -> None:
    policy = grace.Policy([("*", "topk:ratio=exponential(0.5->0.05, 6 steps),start=1")])
    inputs = [{"x": [rand(30, seed=3 * t + r) for r in range(2)]} for t in range(6)]
    whole, first, second = (Simulator(policy, 2) for _ in range(3))
    expected = [whole.step(x)["x"] for x in inputs]
    for x in inputs[:3]:
        first.step(x)
    second.load_state_dict(first.state_dict(), {"x": torch.zeros(30)})
    for x, mean in zip(inputs[3:], expected[3:], strict=True):
        assert torch.equal(second.step(x)["x"], mean)


# ---- a late start ---------------------------------------------------------------------------------------------------
def test_steps_before_the_start_are_plain() -> None:
    inputs = [{"x": [rand(50, seed=3 * t + r) for r in range(3)]} for t in range(5)]
    late, plain, topk = (
        Simulator(grace.Policy([("*", s)]), 3) for s in ("topk:ratio=0.1,start=2", "none", "topk:ratio=0.1")
    )
    for t, x in enumerate(inputs):
        mean = late.step(x)["x"]
        assert torch.equal(mean, (plain if t < 2 else topk).step(x)["x"])
        assert late.traffic[0].rounds == t + 1


def test_a_non_finite_gradient_before_the_start() -> None:
    method = grace.method("topk:start=2")
    runs = [
        method.exchange(x, method.init(x), Peer(r, 2))
        for r, x in enumerate((torch.ones(3), torch.full((3,), math.inf)))
    ]
    outs = simulate(runs)
    assert all(not out.finite and bool(out.mean.isnan().all()) for out in outs)


@pytest.mark.parametrize("start", [-1, 1.5, "soon"])
def test_a_start_out_of_range(start: object) -> None:
    with pytest.raises(ConfigurationError, match="start"):
        grace.method("topk", start=start)
    with pytest.raises(CompositionError):
        Delayed(grace.TopK(), 3)  # type: ignore[arg-type]


def test_traffic_before_and_after_the_start() -> None:
    method, like = grace.method("topk:ratio=0.1,start=2"), torch.zeros(100)
    before, after = (method.traffic(like, Peer(0, 2, step)) for step in (1, 2))
    assert before == grace.method("none").traffic(like, Peer(0, 2))
    assert after == grace.method("topk:ratio=0.1").traffic(like, Peer(0, 2))


@pytest.mark.parametrize("step", [0, 1])
def test_rows_are_scattered_before_the_start_too(step: int) -> None:
    method, rows = grace.method("topk:ratio=0.1,start=1"), [rand(3, 20, seed=seed) for seed in range(3)]
    outs = simulate([method.scatter(x.clone(), method.init(x), Peer(rank, 3, step)) for rank, x in enumerate(rows)])
    mean = sum(rows) / 3
    for rank, out in enumerate(outs):
        if step == 0:
            torch.testing.assert_close(out.mean, mean[rank])
        else:
            assert int((out.mean != 0).sum()) <= 6, "two of each worker's twenty"


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_before_the_start_all_hear_of_an_inf_in_another_row(bad: float) -> None:
    method, rows = grace.method("topk:start=1"), [rand(2, 5, seed=seed) for seed in range(2)]
    rows[0][1, 3] = bad
    outs = simulate([method.scatter(x, method.init(x), Peer(rank, 2, 0)) for rank, x in enumerate(rows)])
    assert [bool(out.finite) for out in outs] == [False, False]
    assert all(bool(out.mean.isnan().all()) for out in outs)
