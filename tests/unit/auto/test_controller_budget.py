"""Spending of the controller, and trials that wait until there is more to spend."""

from __future__ import annotations

import random

import pytest

from grace.auto.controller import Controller
from tests.unit.auto.simulated import SECOND, Noise, Times, mild, run, waves


def test_what_does_not_fit_into_the_budget_waits() -> None:
    """bf16 at 100 Mbit/s: 4.5 s a step beside 0.6; two steps of it are more than 6 s."""
    controller = Controller([4_500_000_000, 600_000_000], 1, [0], baselines=1)
    for step in range(200):
        assert controller.plan == 1
        record = controller.ended(600_000_000, (step + 1) * 600_000_000)
        if record is not None:
            controller.heard([record])
    assert "may cost 7.8 s" in controller.waits[0]
    assert controller.verified_at is None
    for step in range(200, 1600):
        record = controller.ended(600_000_000 if controller.plan else 4_500_000_000, (step + 1) * 600_000_000)
        if record is not None:
            controller.heard([record])
    assert [trial.won for trial in controller.trials] == [False]
    assert "much slower" in controller.trials[0].words
    assert controller.verified_at is not None


class Patient(Controller):
    """Waits for the first in the queue, whatever comes behind it."""

    def _next(self) -> None:
        behind, self.queue = self.queue[1:], self.queue[:1]
        super()._next()
        self.queue += behind


@pytest.mark.parametrize(("kind", "right"), [(Controller, True), (Patient, False)])
def test_who_does_not_fit_is_passed_over_and_tried_later(kind: type[Controller], right: bool) -> None:
    """The baseline takes 4.5 s a step, which waits for a budget of an hour; what takes a quarter less time fits at once."""
    predicted = [4_500_000_000, 600_000_000, 450_000_000]
    ranks = [kind(predicted, 1, [0, 2], baselines=1, seed=3) for _ in range(2)]
    elapsed, seen, meanwhile = 0, [0, 0, 0], False
    for step in range(2400):
        plan = ranks[0].plan
        assert [controller.plan for controller in ranks] == [plan] * 2, "alike on all ranks"
        elapsed += predicted[plan]
        seen[plan] = seen[plan] or step + 1
        # each rank's clock is its own
        told = [
            controller.ended(predicted[plan] * (100 + rank) // 100, elapsed + rank)
            for rank, controller in enumerate(ranks)
        ]
        rows = [row for row in told if row is not None]
        for controller in ranks if rows else []:
            controller.heard(rows)
        meanwhile = meanwhile or (ranks[0].trying and ranks[0].plan == 2 and 0 in ranks[0].waits)
    assert ranks[0].trials == ranks[1].trials
    assert ranks[0].spent <= ranks[0].budget
    assert (0 < seen[2] < 100 < seen[0] and ranks[0].current == 2 and meanwhile) == right
    assert not ranks[0].waits


def test_without_a_share_nothing_is_tried() -> None:
    ended = run(lambda plan, step: (0.20, 0.14)[plan], 2, 1500, 0, share=0.0)
    assert not ended.controller.trials
    assert not ended.controller.looks
    assert ended.controller.current == 1, "as predicted"


MINUTES = 10 * 60 * SECOND
RECORD, LOOK, BEFORE = (
    1_000_000,
    300_000_000,
    3_500_000_000,
)  # nanoseconds of telling, of a look, and of what came before


class Spendthrift(Controller):
    """Tries whatever it can."""

    @property
    def budget(self) -> int:
        return 1 << 60


def ten_minutes(kind: type[Controller], times: Times, plans: int, seed: int, noise: Noise) -> float:
    """The share of ten minutes that everything took, by the clock and not by the ledger: what was measured before, looks,
    records, and what steps of trials took beyond the incumbent's under the same noise.
    """

    def predict(step: int) -> list[int]:
        return [int(SECOND * times(plan, step)) for plan in range(plans)]

    first = min(range(plans), key=lambda plan: times(plan, 0))
    controller = kind(
        predict(0), first, [plan for plan in range(plans) if plan != first], baselines=1, seed=seed, spent=BEFORE
    )
    rng, elapsed, overhead, beyond, step = random.Random(seed), BEFORE, 0, 0.0, 0
    while elapsed < MINUTES:
        factor = noise(rng, step)
        seconds = times(controller.plan, step) * factor
        beyond += max(0.0, seconds - times(controller.current, step) * factor)
        elapsed, step = elapsed + int(SECOND * seconds), step + 1
        record = controller.ended(int(SECOND * seconds), elapsed, overhead)
        if record is None:
            continue
        overhead += RECORD
        controller.heard([record, record])
        if controller.look is not None:
            overhead += LOOK
            now = predict(step)
            controller.looked(now, sorted(range(plans), key=lambda plan: now[plan]), "the link has changed")
        elapsed += RECORD
    return (BEFORE + overhead + SECOND * beyond) / elapsed


def comes_and_goes(plan: int, step: int) -> float:
    """A link that changes every 300 steps."""
    return (0.40, 0.20, 0.24)[plan] if step // 300 % 2 else (0.19, 0.20, 0.24)[plan]


TEN_MINUTES: dict[str, tuple[Times, int, float]] = {
    "nothing to gain": (lambda plan, step: (0.20, 0.21, 0.22)[plan], 3, 0.01),
    "a slow link": (lambda plan, step: (4.5, 0.6, 0.66)[plan], 3, 0.01),
    # where the link becomes slow in the middle of a trial, one block costs what nobody could foresee
    "a link that comes and goes": (comes_and_goes, 3, 0.0105),
}


@pytest.mark.parametrize("case", TEN_MINUTES)
@pytest.mark.parametrize("noise", [mild, waves])
def test_everything_takes_one_percent_of_ten_minutes(case: str, noise: Noise) -> None:
    times, plans, most = TEN_MINUTES[case]
    for seed in range(4):
        assert ten_minutes(Controller, times, plans, seed, noise) <= most


def test_a_controller_without_a_budget_is_caught() -> None:
    times, plans, most = TEN_MINUTES["a slow link"]
    assert ten_minutes(Spendthrift, times, plans, 0, mild) > most
