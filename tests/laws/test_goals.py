"""Under the goal "time" a step's time counts times the steps that a method takes: nothing is ever predicted, or kept by
trials, that comes to bf16's quality later than the better of fp32 and bf16.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from grace.auto.controller import ONE, Controller
from grace.auto.planner import Part, Plan, Problem, better_baseline, make_plan, propose, shortlist
from grace.auto.trial import Trial

BASELINES = ("none", "bf16")
NAMES = (*BASELINES, "a", "b", "c")


def draw_problem(rng: random.Random) -> Problem:
    """Up to three buckets on a slow lane; compressed methods are faster, and take up to three times the steps."""
    count = rng.randint(1, 3)
    costs = {
        name: [rng.uniform(0.2, 2.0) * (1.0 if name in BASELINES else 0.6) for _ in range(count)] for name in NAMES
    }
    factors = {name: rng.uniform(1.0, 3.0) for name in NAMES if name not in BASELINES}
    return Problem(
        1.0, 1.0, 2.0, [(k + 1) / count for k in range(count)], [10] * count, list(NAMES),
        lambda i, j, method: [(0.0, sum(costs[method][i:j]))], factors=factors,
    )  # fmt: skip


def best_of_all(asked: Problem) -> float:
    """The soonest of all combinations, each bucket on its own."""
    count = len(asked.ready)
    plans = [
        asked.plan([Part(j, j + 1, method) for j, method in enumerate(methods)])
        for methods in itertools.product(NAMES, repeat=count)
    ]
    return min(plan.cost for plan in plans if plan is not None)


def worst_plan(plans: Callable[[Problem], Plan]) -> tuple[float, float]:
    """Over random problems: the most that a plan takes beside the better baseline, and beside the best of all."""
    rng, beside, over = random.Random(5), 0.0, 0.0
    for _ in range(60):
        asked = draw_problem(rng)
        plan = plans(asked)
        truth = max(asked.factors.get(method, 1.0) for method in plan.methods) * plan.seconds
        beside = max(beside, truth / better_baseline(asked, BASELINES).cost)
        over = max(over, truth / best_of_all(asked))
    return beside, over


def test_no_plan_is_predicted_to_come_later_than_the_baselines() -> None:
    beside, over = worst_plan(make_plan)
    assert beside <= 1 + 1e-9
    assert over <= 1.05
    assert worst_plan(lambda asked: propose(asked)[0][propose(asked)[1]])[0] <= 1 + 1e-9


def test_without_factors_a_step_is_a_step() -> None:
    rng = random.Random(5)
    for _ in range(20):
        asked = draw_problem(rng)
        asked.factors = {}
        assert make_plan(asked).cost == make_plan(asked).seconds


def test_the_law_catches_a_planner_that_looks_at_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "cost", property(lambda plan: plan.seconds))
    assert worst_plan(make_plan)[0] > 1.2


def test_the_law_catches_the_factor_of_the_first_bucket_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(problem: Problem, parts: list[Part]) -> Plan | None:
        plan = whole(problem, parts)
        return None if plan is None else Plan(plan.parts, plan.seconds, problem.factors.get(parts[0].method, 1.0))

    whole = Problem.plan
    monkeypatch.setattr(Problem, "plan", first)
    assert worst_plan(make_plan)[0] > 1.05


def test_what_is_tried_first_is_what_comes_soonest() -> None:
    costs = {"none": 1.0, "bf16": 0.9, "a": 0.1, "b": 0.4}
    asked = Problem(
        1.0,
        1.0,
        2.0,
        [1.0],
        [10],
        list(costs),
        lambda i, j, method: [(0.0, costs[method])],
        factors={"a": 1.6, "b": 1.1},
    )
    listed = shortlist(asked, BASELINES)
    assert [plan.methods[0] for plan in listed] == ["b", "a"]
    assert [round(plan.cost, 6) for plan in listed] == [1.54, 1.76]
    assert [plan.methods[0] for plan in propose(asked)[0]] == ["bf16", "none", "b", "a"]


# ---- trials ---------------------------------------------------------------------------------------------------------
def train(factor: float, kind: type[Controller] = Controller, steps: int = 1200, seed: int = 0) -> Controller:
    """Plan 1 takes 200 ms a step where the baseline takes 260, and so many times the steps."""
    rng, truth = random.Random(seed), (260, 200)
    controller = kind([260_000_000, 200_000_000], 0, [1], baselines=1, weights=[ONE, round(ONE * factor)], seed=seed)
    for step in range(steps):
        period = int(truth[controller.plan] * 1e6 * rng.uniform(0.97, 1.03))
        record = controller.ended(period, (step + 1) * 230_000_000)
        if record is not None:
            controller.heard([record])
        if controller.look is not None:
            controller.looked(controller.predicted, [1 - controller.current], "it is time")
    return controller


class Racing(Trial):
    """Compares steps, whatever they are worth."""

    def worth(self, theirs: int) -> int:
        return theirs


@pytest.mark.parametrize(("factor", "ends"), [(1.0, 1), (1.15, 1), (1.45, 0), (3.0, 0)])
def test_trials_keep_what_comes_sooner(factor: float, ends: int) -> None:
    for seed in range(3):
        controller = train(factor, seed=seed)
        assert controller.current == ends, controller.trials
        assert controller.spent <= controller.budget
        assert controller.trials


def test_the_law_catches_trials_that_race_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.auto.controller.Trial", Racing)
    assert train(1.45).current == 1


def test_what_was_used_first_gives_way_to_a_baseline_that_comes_sooner() -> None:
    controller = Controller([260_000_000, 200_000_000], 1, [0], baselines=1, weights=[ONE, round(1.45 * ONE)])
    rng, truth = random.Random(1), (260, 200)
    for step in range(600):
        record = controller.ended(int(truth[controller.plan] * 1e6 * rng.uniform(0.97, 1.03)), (step + 1) * 230_000_000)
        if record is not None:
            controller.heard([record])
    assert controller.current == 0
    assert controller.trials[0].pairs[0][0] < controller.trials[0].pairs[0][1], "pairs are steps as they were measured"


def test_where_steps_cannot_be_compared_a_prediction_is_believed_by_what_it_is_worth() -> None:
    for factor, ends in ((1.0, 1), (2.5, 0)):
        controller = Controller([100_000, 50_000], 0, [1], baselines=1, weights=[ONE, round(factor * ONE)])
        for step in range(8000):
            record = controller.ended(100_000 if controller.plan == 0 else 50_000, (step + 1) * 100_000)
            if record is not None:
                controller.heard([record])
            if controller.hopeless is not None:
                break
        assert controller.hopeless is not None
        assert controller.current == ends
