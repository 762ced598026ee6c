"""Decisions of the controller over steps that are only simulated: thousands of them, with noise, stalls and neighbours."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest

from benchmarks.trials import Counting
from grace.auto.controller import APART, CAP, LOOK_STEPS, Controller
from grace.auto.trial import PAIRS
from grace.errors import AgreementError
from tests.unit.auto.simulated import Noise, Times, mild, run, waves


def underrated(plan: int, step: int) -> float:
    return (0.20, 0.21)[plan] if step == 0 else (0.20, 0.186)[plan]


# ---- the cases of the table -----------------------------------------------------------------------------------------
CASES: dict[str, tuple[Times, int, Noise, float, int | None]] = {
    "30 % faster": (lambda plan, step: (0.20, 0.14)[plan], 2, mild, 0.74, 1),
    "30 % faster under waves": (lambda plan, step: (0.20, 0.14)[plan], 2, waves, 0.76, 1),
    "as fast": (lambda plan, step: 0.20, 2, mild, 1.02, None),
    "as fast under waves": (lambda plan, step: 0.20, 2, waves, 1.02, None),
    "two, the better one second": (lambda plan, step: (0.20, 0.19, 0.12)[plan], 3, mild, 0.66, 2),
    "40 % slower": (lambda plan, step: (0.20, 0.28)[plan], 2, mild, 1.02, 0),
    "7 % faster, and predicted 5 % slower": (underrated, 2, mild, 0.97, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_ends_right_and_costs_little(case: str) -> None:
    times, plans, noise, most, ends = CASES[case]
    outcomes = [run(times, plans, 2000, seed, noise) for seed in range(12)]
    assert statistics.mean(outcome.seconds / outcome.baseline for outcome in outcomes) <= most
    if ends is not None:
        assert sum(outcome.controller.current == ends for outcome in outcomes) >= 11
    assert max(len(outcome.changes) for outcome in outcomes) <= 7
    for outcome in outcomes:
        assert outcome.controller.spent <= outcome.controller.budget


def test_who_counts_pairs_misses_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.auto.controller.Trial", Counting)
    assert sum(run(underrated, 2, 600, seed).controller.current for seed in range(12)) <= 8


class Believer(Controller):
    """Believes what is predicted, and tries nothing."""

    def _next(self) -> None:
        self._begin("watch", 16)


def wrong(plan: int, step: int) -> float:
    """Predicted to be 30 % faster, it is 40 % slower."""
    return (0.20, 0.14)[plan] if step == 0 else (0.20, 0.28)[plan]


@pytest.mark.parametrize(("kind", "right"), [(Controller, True), (Believer, False)])
def test_a_prediction_is_not_believed(kind: type[Controller], right: bool) -> None:
    outcomes = [run(wrong, 2, 600, seed, kind=kind) for seed in range(6)]
    assert (sum(outcome.controller.current == 0 for outcome in outcomes) >= 5) == right
    if right:
        assert all(outcome.controller.verified_at is None or outcome.controller.current == 0 for outcome in outcomes)


class Discarding(Controller):
    """Drops who waits when fp32 or bf16 has won."""

    def _change(self, number: int) -> None:
        super()._change(number)
        if number < self.baselines:
            self.queue = []


@pytest.mark.parametrize(("kind", "ends"), [(Controller, 3), (Discarding, 1)])
@pytest.mark.parametrize("incumbent", [0, 2])
def test_who_waits_is_tried_when_a_baseline_has_won(kind: type[Controller], ends: int, incumbent: int) -> None:
    """Plan 1, fp32, is faster than what was predicted to be the best, and plan 3 is faster than that."""
    truth = [380, 360, 400, 300]
    queue = [1, *(plan for plan in (0, 2, 3) if plan != incumbent)]
    controller = kind([440_000_000, 450_000_000, 435_000_000, 445_000_000], incumbent, queue, baselines=2)
    rng = random.Random(3)
    for step in range(1500):
        period = int(truth[controller.plan] * 1e6 * math.exp(rng.gauss(0, 0.01)))
        record = controller.ended(period, (step + 1) * 360_000_000)
        if record is not None:
            controller.heard([record])
        if controller.look is not None:
            controller.looked(controller.predicted, [], "nothing has changed")
    assert controller.current == ends


# ---- links that change ----------------------------------------------------------------------------------------------
def slows(plan: int, step: int) -> float:
    return (0.16, 0.20)[plan] if step < 1500 else (0.40, 0.20)[plan]


def quickens(plan: int, step: int) -> float:
    return (0.40, 0.20)[plan] if step < 1500 else (0.16, 0.20)[plan]


def test_a_link_that_becomes_slow_is_answered_within_120_steps() -> None:
    late = []
    for seed in range(12):
        outcome = run(slows, 2, 3000, seed)
        assert outcome.controller.current == 1
        late.append(next(step for step, plan in outcome.changes if plan == 1 and step > 1500) - 1500)
    assert statistics.median(late) <= 120


def test_a_link_that_becomes_fast_is_found_by_looking() -> None:
    for seed in range(12):
        outcome = run(quickens, 2, 3600, seed)
        assert outcome.controller.current == 0
        assert next(step for step, plan in outcome.changes if plan == 0 and step > 1500) <= 1500 + LOOK_STEPS * 4 + 120


def test_neighbours_that_come_and_go_cost_few_looks_and_switches() -> None:
    def noise(rng: random.Random, step: int) -> float:
        return mild(rng, step) * (1.6 if (step // 100) % 3 == 0 else 1.0)

    for seed in range(6):
        outcome = run(lambda plan, step: (0.20, 0.14)[plan], 2, 4000, seed, noise)
        assert outcome.controller.current == 1
        assert len(outcome.changes) <= 5
        assert outcome.controller.looks <= 4000 // APART / 2


def test_a_neighbour_with_the_period_of_two_blocks() -> None:
    def noise(rng: random.Random, step: int) -> float:
        return mild(rng, step) * (1.5 if (step // 5) % 4 < 2 else 1.0)

    right = sum(
        run(lambda plan, step: (0.20, 0.14)[plan], 2, 2000, seed, noise).controller.current == 1 for seed in range(10)
    )
    assert right >= 9


def test_a_slow_drift_changes_no_plan() -> None:
    outcome = run(lambda plan, step: (0.20, 0.14)[plan] * (1 + 0.01 * step / 100), 2, 3000, 3)
    assert outcome.controller.current == 1
    assert len(outcome.changes) <= 2


def test_one_rank_that_is_slow_for_a_while_changes_no_plan() -> None:
    """All plans suffer alike."""

    def times(plan: int, step: int) -> float:
        return (0.20, 0.14)[plan] + (0.4 if 600 <= step < 1100 else 0.0)

    for seed in range(4):
        outcome = run(times, 2, 2500, seed)
        assert outcome.controller.current == 1
        assert len(outcome.changes) <= 3


def test_rare_stalls_of_twenty_times() -> None:
    def noise(rng: random.Random, step: int) -> float:
        return math.exp(rng.gauss(0, 0.08)) * (20 if rng.random() < 0.02 else 1)

    right = sum(
        run(lambda plan, step: (0.20, 0.14)[plan], 2, 1500, seed, noise).controller.current == 1 for seed in range(10)
    )
    assert right >= 9


@pytest.mark.parametrize("resolution", [1000, 1_000_000])
def test_coarse_clocks(resolution: int) -> None:
    outcome = run(lambda plan, step: (0.20, 0.14)[plan], 2, 800, 1, resolution=resolution)
    assert outcome.controller.current == 1


def test_a_plan_that_is_hardly_slower_gives_way_to_the_baseline() -> None:
    """3 % slower than predicted to be 10 % faster, under noise: the burden is the plan's."""

    def times(plan: int, step: int) -> float:
        return (0.20, 0.18)[plan] if step == 0 else (0.20, 0.206)[plan]

    def noise(rng: random.Random, step: int) -> float:
        return math.exp(rng.gauss(0, 0.02))

    assert sum(run(times, 2, 600, seed, noise).controller.current == 0 for seed in range(12)) >= 9


# ---- what cannot be measured ----------------------------------------------------------------------------------------
def feed(controller: Controller, periods: Callable[[int], int], steps: int) -> None:
    for step in range(steps):
        record = controller.ended(periods(step), step * 1000)
        if record is not None:
            controller.heard([record])


def test_a_step_too_short_to_measure() -> None:
    believed = Controller([100_000, 70_000], 1, [0], baselines=1)
    feed(believed, lambda step: 90_000, 8000)
    assert believed.hopeless == "a step takes 0.090 ms, which is too short to be compared"
    assert believed.current == 1, "predicted to be 30 % faster"
    doubted = Controller([100_000, 85_000], 1, [0], baselines=1)
    feed(doubted, lambda step: 90_000, 8000)
    assert doubted.current == 0
    assert not doubted.trials


def test_blocks_that_vary_too_much_cannot_be_compared() -> None:
    """Every other pair for the challenger, and the incumbent's own blocks between 100 and 200 ms."""
    milliseconds = (100, 150, 200, 150) * 4
    controller = Controller([200_000_000, 190_000_000, 195_000_000], 0, [1, 2], baselines=1)
    while controller.hopeless is None:
        pair = len(controller._now.pairs) if controller.trying else 0
        ms = milliseconds[pair] * (1 if controller.plan == 0 else 0.9 if pair % 2 == 0 else 1.1)
        record = controller.ended(int(1e6 * ms), controller.step)
        if record is not None:
            controller.heard([record])
        assert controller.step < 1000
    assert controller.hopeless == "blocks of the same plan differ by 67%"
    assert controller.current == 0, "5 % are not believed"
    assert controller.events[-1][1] == "blocks of the same plan differ by 67%: no trials"
    while controller.look is None:
        record = controller.ended(150_000_000, 2_000_000_000 * controller.step)
        if record is not None:
            controller.heard([record])
        assert controller.step < 5000, "nobody who waits keeps it from looking again"
    assert controller.look == "it is time to look again"


def test_a_block_without_legal_periods_is_a_lost_pair() -> None:
    controller = Controller([200_000_000, 100_000_000], 0, [1], baselines=1)
    for step in range(200):
        zero = controller.trying and controller.plan == 1 and step % 2 == 0
        record = controller.ended(0 if controller.plan == 1 and not zero else 100_000_000, step)
        if record is not None:
            controller.heard([record])
    assert controller.current == 0
    assert not any(trial.won for trial in controller.trials)


def test_ranks_that_have_decided_differently_are_told() -> None:
    controller = Controller([200_000_000, 100_000_000], 0, [1], baselines=1)
    record = None
    while record is None:
        record = controller.ended(200_000_000)
    other = list(record)
    other[2] = 1
    with pytest.raises(AgreementError, match=r"rank 0 at plan 0, step \d+, rank 1 at plan 1"):
        controller.heard([record, other])


def test_the_slowest_rank_counts() -> None:
    controller = Controller([200_000_000, 100_000_000], 0, [], baselines=1)
    record = None
    while record is None:
        record = controller.ended(200_000_000)
    controller.heard([record, [300_000_000, *record[1:]]])
    assert controller.measured[0] == 300_000_000


def test_limits_are_what_the_page_says() -> None:
    assert (PAIRS, CAP, LOOK_STEPS) == (16, (3, 2), 400)
