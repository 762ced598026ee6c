"""The model's own step, from when its buckets come."""

from __future__ import annotations

import itertools
import random

import pytest

from grace.auto.calibrate import stragglers
from grace.auto.model import StepClock, model_of
from grace.errors import ConfigurationError


class Steps:
    """A model's steps on a clock of its own."""

    def __init__(self, compute: int, arrivals: list[int], exchange: int, noise: float = 0.0, seed: int = 0):
        self.now, self.random, self.noise = 10**12, random.Random(seed), noise
        self.compute, self.arrivals, self.exchange = compute, arrivals, exchange

    def clock(self) -> int:
        return self.now

    def run(self, clock: StepClock, buckets: int | None = None) -> list[bool]:
        start = self.now
        times = 1 + self.noise * self.random.random()
        answers = []
        for at in self.arrivals[: buckets or len(self.arrivals)]:
            self.now = start + int(times * at)
            answers.append(clock.ready())
        self.now += self.exchange
        clock.exchanged()
        return answers


def test_a_step_is_measured_while_its_buckets_are_held() -> None:
    steps = Steps(100, [40_000_000, 70_000_000, 100_000_000], 30_000_000)
    clock = StepClock(3, clock=steps.clock)
    count = 0
    while not clock.done:
        assert steps.run(clock) == [False, False, True]
        count += 1
    assert count == 6, "one begins before"
    assert clock.record() == [100_000_000, 30_000_000, 40_000_000, 70_000_000, 100_000_000]
    model = model_of([clock.record(), clock.record()])
    assert (model.compute, model.exposed, model.period) == pytest.approx((0.1, 0.03, 0.13))
    assert model.ready == pytest.approx((0.4, 0.7, 1.0))


def test_an_evaluation_between_steps_and_other_buckets_do_not_count() -> None:
    steps = Steps(100, [50, 100], 30)
    clock = StepClock(2, clock=steps.clock)
    for number in itertools.count():
        if number == 3:
            steps.now += 10**9  # an evaluation
        steps.run(clock, buckets=1 if number == 2 else None)
        if clock.done:
            break
    assert number == 6
    assert clock.record()[0] == 100


def test_the_slowest_model_counts_and_its_own_wait_is_the_exchange() -> None:
    fast, slow = [80_000, 70_000, 30_000, 80_000], [130_000, 20_000, 90_000, 130_000]
    model = model_of([fast, slow, fast])
    assert model.compute == pytest.approx(130e-6)
    assert model.exposed == pytest.approx(20e-6)
    assert model.ready == pytest.approx((90 / 130, 1.0))
    assert stragglers([model.computing]) == [
        "rank 1 takes 1.6 times as long as the median of the ranks (the model): all wait for it"
    ]
    assert model.waiting.ns == (70_000, 20_000, 70_000)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_not_taken_for_a_slow_model(seed: int) -> None:
    steps = Steps(100, [600_000, 1_000_000], 200_000, noise=0.2, seed=seed)
    clock = StepClock(2, clock=steps.clock)
    while not clock.done:
        steps.run(clock)
    assert 1_000_000 <= clock.record()[0] <= 1_200_000


def test_shares_rise_even_where_ranks_differ() -> None:
    model = model_of([[100, 5, 60, 50, 100], [100, 5, 40, 45, 100]])
    assert model.ready == (0.6, 0.6, 1.0)
    assert model_of([[0, 0, 0]]).ready == (1.0,), "a clock that stood still divides by nothing"


def test_buckets_are_counted() -> None:
    with pytest.raises(ConfigurationError, match="legal: >= 1"):
        StepClock(0)


def test_a_step_is_measured_while_it_waits_for_each_bucket() -> None:
    steps, exchange = Steps(100, [], 0), 30_000_000
    clock = StepClock(3, clock=steps.clock)
    while not clock.done:
        for pause in (40_000_000, 30_000_000, 30_000_000):
            steps.now += pause
            clock.ready()
            steps.now += exchange
            clock.waited(exchange)
        steps.now += 5_000_000  # from the last mean to the end of the pass
        clock.exchanged()
    assert clock.record() == [100_000_000, 95_000_000, 40_000_000, 70_000_000, 100_000_000]


def test_a_step_that_was_broken_off_does_not_count() -> None:
    steps = Steps(100, [50, 100], 30)
    clock = StepClock(2, clock=steps.clock)
    for number in itertools.count():
        if number == 3:
            clock.ready()
            clock.waited(7)
            steps.now += 10**9
        clock.began()
        steps.run(clock)
        if clock.done:
            break
    assert number == 6
    assert clock.record()[:2] == [100, 30]
