"""What the controller decides over steps that are only simulated: thousands of them, with noise, stalls and neighbours."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from benchmarks.trials import Counting
from grace.auto.controller import APART, CAP, LOOK_STEPS, SCOUTS, Controller
from grace.auto.drift import Drift
from grace.auto.trial import PAIRS, Trial
from grace.errors import AgreementError

Times = Callable[[int, int], float]  # seconds of a step under a plan
Noise = Callable[[random.Random, int], float]
SECOND = 1_000_000_000


def mild(rng: random.Random, step: int) -> float:
    return math.exp(rng.gauss(0, 0.08)) * (1 + (rng.random() < 0.03) * rng.expovariate(0.7))


def waves(rng: random.Random, step: int) -> float:
    """Another tenant comes and goes, in step with a block at times."""
    return math.exp(rng.gauss(0, 0.10)) * (1.4 if (step // 5) % 2 else 1.0) * (1.5 if (step // 137) % 3 == 0 else 1.0)


@dataclass
class Run:
    controller: Controller
    seconds: float
    baseline: float
    changes: list[tuple[int, int]]  # step, plan


def run(
    times: Times, plans: int, steps: int, seed: int, noise: Noise = mild, *, resolution: int = 1, share: float = 0.01
) -> Run:
    """Training under a controller: plan 0 is the better baseline, and predictions are right at the step of each look."""

    def predict(step: int) -> list[int]:
        return [int(SECOND * times(plan, step)) for plan in range(plans)]

    predicted = predict(0)
    best = min(range(plans), key=lambda plan: predicted[plan])
    incumbent = best if predicted[best] < 0.97 * predicted[0] else 0
    controller = Controller(
        predicted, incumbent, [plan for plan in range(plans) if plan != incumbent], baselines=1, seed=seed, share=share
    )
    rng, total, base, elapsed = random.Random(1000 + seed), 0.0, 0.0, 0
    changes = [(0, controller.current)]
    for step in range(steps):
        factor = noise(rng, step)
        seconds = times(controller.plan, step) * factor
        total, base, elapsed = total + seconds, base + times(0, step) * factor, elapsed + int(SECOND * seconds)
        record = controller.ended(int(SECOND * seconds) // resolution * resolution, elapsed)
        if record is None:
            continue
        controller.heard([record, record])
        if controller.current != changes[-1][1]:
            changes.append((step, controller.current))
        if controller.look is not None:
            now = predict(step)
            order = sorted(range(plans), key=lambda plan: now[plan])
            due = "time" in controller.look
            faster = now[order[0]] < 0.95 * now[controller.current]
            controller.looked(now, order if faster or not due else [], "the link has changed")
    return Run(controller, total, base, changes)


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
    found = [run(times, plans, 2000, seed, noise) for seed in range(12)]
    assert statistics.mean(one.seconds / one.baseline for one in found) <= most
    if ends is not None:
        assert sum(one.controller.current == ends for one in found) >= 11
    assert max(len(one.changes) for one in found) <= 7
    for one in found:
        assert one.controller.spent <= one.controller.budget


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
def test_a_prediction_is_not_believed(kind: type[Controller], right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.auto.test_controller.Controller", kind)
    found = [run(wrong, 2, 600, seed) for seed in range(6)]
    assert (sum(one.controller.current == 0 for one in found) >= 5) == right
    if right:
        assert all(one.controller.verified_at is None or one.controller.current == 0 for one in found)


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
        one = run(slows, 2, 3000, seed)
        assert one.controller.current == 1
        late.append(next(step for step, plan in one.changes if plan == 1 and step > 1500) - 1500)
    assert statistics.median(late) <= 120


def test_a_link_that_becomes_fast_is_found_by_looking() -> None:
    for seed in range(12):
        one = run(quickens, 2, 3600, seed)
        assert one.controller.current == 0
        assert next(step for step, plan in one.changes if plan == 0 and step > 1500) <= 1500 + LOOK_STEPS * 4 + 120


def test_neighbours_that_come_and_go_cost_few_looks_and_switches() -> None:
    def noise(rng: random.Random, step: int) -> float:
        return mild(rng, step) * (1.6 if (step // 100) % 3 == 0 else 1.0)

    for seed in range(6):
        one = run(lambda plan, step: (0.20, 0.14)[plan], 2, 4000, seed, noise)
        assert one.controller.current == 1
        assert len(one.changes) <= 5
        assert one.controller.looks <= 4000 // APART / 2


def test_a_neighbour_with_the_period_of_two_blocks() -> None:
    def noise(rng: random.Random, step: int) -> float:
        return mild(rng, step) * (1.5 if (step // 5) % 4 < 2 else 1.0)

    right = sum(
        run(lambda plan, step: (0.20, 0.14)[plan], 2, 2000, seed, noise).controller.current == 1 for seed in range(10)
    )
    assert right >= 9


def test_a_slow_drift_changes_no_plan() -> None:
    one = run(lambda plan, step: (0.20, 0.14)[plan] * (1 + 0.01 * step / 100), 2, 3000, 3)
    assert one.controller.current == 1
    assert len(one.changes) <= 2


def test_one_rank_that_is_slow_for_a_while_changes_no_plan() -> None:
    """All plans suffer alike."""

    def times(plan: int, step: int) -> float:
        return (0.20, 0.14)[plan] + (0.4 if 600 <= step < 1100 else 0.0)

    for seed in range(4):
        one = run(times, 2, 2500, seed)
        assert one.controller.current == 1
        assert len(one.changes) <= 3


def test_rare_stalls_of_twenty_times() -> None:
    def noise(rng: random.Random, step: int) -> float:
        return math.exp(rng.gauss(0, 0.08)) * (20 if rng.random() < 0.02 else 1)

    right = sum(
        run(lambda plan, step: (0.20, 0.14)[plan], 2, 1500, seed, noise).controller.current == 1 for seed in range(10)
    )
    assert right >= 9


@pytest.mark.parametrize("resolution", [1000, 1_000_000])
def test_coarse_clocks(resolution: int) -> None:
    one = run(lambda plan, step: (0.20, 0.14)[plan], 2, 800, 1, resolution=resolution)
    assert one.controller.current == 1


def test_a_plan_that_is_hardly_slower_gives_way_to_the_baseline() -> None:
    """3 % slower than predicted to be 10 % faster, under noise: the burden is the plan's."""

    def times(plan: int, step: int) -> float:
        return (0.20, 0.18)[plan] if step == 0 else (0.20, 0.206)[plan]

    def noise(rng: random.Random, step: int) -> float:
        return math.exp(rng.gauss(0, 0.02))

    assert sum(run(times, 2, 600, seed, noise).controller.current == 0 for seed in range(12)) >= 9


# ---- budget ---------------------------------------------------------------------------------------------------------
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
        assert [one.plan for one in ranks] == [plan] * 2, "alike on all ranks"
        elapsed += predicted[plan]
        seen[plan] = seen[plan] or step + 1
        # each rank's clock is its own
        told = [one.ended(predicted[plan] * (100 + rank) // 100, elapsed + rank) for rank, one in enumerate(ranks)]
        rows = [row for row in told if row is not None]
        for one in ranks if rows else []:
            one.heard(rows)
        meanwhile = meanwhile or (ranks[0].trying and ranks[0].plan == 2 and 0 in ranks[0].waits)
    assert ranks[0].trials == ranks[1].trials
    assert ranks[0].spent <= ranks[0].budget
    assert (0 < seen[2] < 100 < seen[0] and ranks[0].current == 2 and meanwhile) == right
    assert not ranks[0].waits


class Hasty(Controller):
    """Believes one step."""

    def _scout(self) -> None:
        super()._scout()
        self._scouts = SCOUTS


@pytest.mark.parametrize(("kind", "tried"), [(Controller, True), (Hasty, False)])
def test_a_stall_in_the_first_step_of_a_trial_is_not_believed(kind: type[Controller], tried: bool) -> None:
    controller, stalls = kind([200_000_000, 160_000_000], 0, [1], baselines=1), 2
    while not controller.trials:
        slow, stalls = controller.plan == 1 and stalls > 0, stalls - (controller.plan == 1)
        record = controller.ended(1_000_000 * (600 if slow else (200, 160)[controller.plan]), controller.step)
        if record is not None:
            controller.heard([record])
    assert controller.trials[0].won is tried


def test_a_stalled_pair_does_not_end_a_trial_that_is_almost_won() -> None:
    controller = Controller([200_000_000, 160_000_000], 0, [1], baselines=1)
    while not controller.trials:
        stalled = controller.trying and controller.plan == 1 and controller._now.count == 3
        record = controller.ended(1_000_000 * (600 if stalled else (200, 160)[controller.plan]), controller.step)
        if record is not None:
            controller.heard([record])
    assert controller.trials[0].words == "8 of 9 pairs for it"


@pytest.mark.parametrize(("predicted", "steps"), [(350, 2), (250, 4)])
def test_what_is_much_slower_has_lost_after_two_steps_or_four(predicted: int, steps: int) -> None:
    controller, seen = Controller([200_000_000, 1_000_000 * predicted], 0, [1], baselines=1), 0
    while not controller.trials:
        seen += controller.plan
        record = controller.ended(1_000_000 * (350 if controller.plan else 200), controller.step)
        if record is not None:
            controller.heard([record])
    assert seen == steps
    assert controller.trials[0].words == "350.0 ms a step, and 200.0: much slower"


# ---- trials that go on later ----------------------------------------------------------------------------------------
class Forgetful(Controller):
    """Begins again with nothing."""

    def _next(self) -> None:
        self._open_trials = {pair: Trial(*pair, "again") for pair in self._open_trials}
        super()._next()


def open_trial(kind: type[Controller] = Controller) -> list[Controller]:
    """Two ranks at the end of a trial that 16 pairs have not decided, two of three for the challenger; another one waits."""
    ranks = [kind([200_000_000, 190_000_000, 195_000_000], 0, [1, 2], baselines=1, seed=5) for _ in range(2)]
    while not ranks[0].trials:
        ratio = 1.08 if ranks[0].trying and ranks[0]._now.count % 3 == 1 else 0.9
        advance(ranks, [200, int(200 * ratio), 230])
    return ranks


def advance(ranks: list[Controller], ms: list[int]) -> None:
    """One step, under each plan of so many milliseconds."""
    assert len({(one.plan, one.trying) for one in ranks}) == 1, "alike on all ranks"
    told = [one.ended(1_000_000 * ms[one.plan], 200_000_000 * one.step + k) for k, one in enumerate(ranks)]
    rows = [row for row in told if row is not None]
    for one in ranks if rows else []:
        one.heard(rows)


def test_what_16_pairs_leave_open_waits_until_others_have_been_tried() -> None:
    ranks = open_trial()
    for one in ranks:
        assert [trial.won for trial in one.trials] == [False]
        assert one.trials[0].words == "11 of 16 pairs for it: it is tried again, with these counted"
        assert (one.plan, one.waits) == (2, {1: "11 of 16 pairs for it, and it is tried again after others"})
        assert one.verified_at is None


@pytest.mark.parametrize(("kind", "pairs"), [(Controller, 19), (Forgetful, 6)])
def test_it_goes_on_with_the_pairs_that_it_has(kind: type[Controller], pairs: int) -> None:
    ranks = open_trial(kind)
    while ranks[0].current == 0:
        advance(ranks, [200, 180, 230])
    for one in ranks:
        assert [(trial.rival, trial.won, trial.count) for trial in one.trials[1:]] == [(2, False, 2), (1, True, pairs)]
        assert not one.waits
        assert not one.queue
    assert ranks[0].trials == ranks[1].trials
    assert kind is Forgetful or ranks[0].trials[-1].words == "14 of 19 pairs for it"


def test_what_stays_open_ends() -> None:
    ranks = open_trial()
    while ranks[0].queue or ranks[0].trying:
        advance(ranks, [200, 220 if ranks[0].trying and ranks[0]._now.count % 2 else 180, 230])
    assert [trial.count for trial in ranks[0].trials] == [16, 2, 32]
    assert ranks[0].trials[-1].words == "19 of 32 pairs for it, which decides nothing"
    assert ranks[0].current == 0


def test_a_look_forgets_earlier_pairs() -> None:
    """The link, or the machine, is another one."""
    ranks = open_trial()
    for one in ranks:
        one.looked(one.predicted, [1], "the link has changed")
    while ranks[0].current == 0:
        advance(ranks, [200, 180, 230])
    assert [trial.count for trial in ranks[0].trials] == [16, 6]


def test_a_trial_that_the_budget_has_ended_goes_on() -> None:
    """Half a second more in each of its steps than was predicted, and then as fast."""
    controller = Controller([2_000_000_000, 1_990_000_000], 0, [1], baselines=1)
    while not controller.trials:
        slow = controller.trying and controller.plan == 1 and controller._now.count < 1
        record = controller.ended(2_800_000_000 if slow else 2_000_000_000 - 200 * controller.plan, controller.step)
        if record is not None:
            controller.heard([record])
    assert controller.trials[0].words == "it has cost more than predicted, and the budget is spent"
    assert "trying it may cost" in controller.waits[1]


def test_a_look_in_place_of_a_trial_leaves_none_behind() -> None:
    controller = Controller([200_000_000, 100_000_000], 1, [0], baselines=1)
    controller.ask("the link is known only so far")
    while controller.look is None:
        if (record := controller.ended(100_000_000, controller.step)) is not None:
            controller.heard([record])
    controller.looked([200_000_000, 100_000_000], [], controller.look)
    assert not controller.trying
    assert controller.plan == 1


def test_without_a_share_nothing_is_tried() -> None:
    one = run(lambda plan, step: (0.20, 0.14)[plan], 2, 1500, 0, share=0.0)
    assert not one.controller.trials
    assert not one.controller.looks
    assert one.controller.current == 1, "as predicted"


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
    mine = (100, 150, 200, 150) * 4
    controller = Controller([200_000_000, 190_000_000, 195_000_000], 0, [1, 2], baselines=1)
    while controller.hopeless is None:
        pair = len(controller._now.pairs) if controller.trying else 0
        ms = mine[pair] * (1 if controller.plan == 0 else 0.9 if pair % 2 == 0 else 1.1)
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


# ---- drift ----------------------------------------------------------------------------------------------------------
def blocks(seed: int, count: int, change: float) -> list[int]:
    rng = random.Random(seed)
    return [
        int(1e6 * statistics.median(mild(rng, 0) * (1 + change * (block >= 20)) for _ in range(16)))
        for block in range(count)
    ]


@pytest.mark.parametrize(("change", "within"), [(0.25, 5), (0.10, 30), (-0.20, 8)])
def test_a_change_of_pace_is_noticed(change: float, within: int) -> None:
    late = []
    for seed in range(30):
        drift = Drift()
        late.append(next((k for k, median in enumerate(blocks(seed, 100, change)) if drift.alarm(median)), 1000) - 20)
    assert statistics.median(late) <= within
    assert min(late) >= 0


def test_without_a_change_there_is_no_alarm() -> None:
    assert not any(any(map(Drift().alarm, blocks(seed, 300, 0.0))) for seed in range(8))


def test_limits_are_what_the_page_says() -> None:
    assert (PAIRS, CAP, LOOK_STEPS) == (16, (3, 2), 400)
