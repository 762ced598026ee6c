"""Proposals and trials: once the model is known, and after a look."""

from __future__ import annotations

from grace.auto.planner import Part, Plan, Problem, propose, propose_again
from tests.unit.auto.test_planner import constant


def uniform(problem: Problem, method: str) -> Plan:
    plan = problem.uniform(method)
    assert plan is not None
    return plan


def test_the_better_baseline_comes_first_and_is_tried_however_slow() -> None:
    problem = constant({"none": (9.0, 9.0), "bf16": (4.0, 4.0), "topk": (1.0, 1.0), "fp8": (1.2, 1.2)})
    plans, best, tried = propose(problem)
    assert [str(plan) for plan in plans] == ["bf16", "none", "topk", "fp8"]
    assert (best, tried) == (2, [0, 3]), "fp32 takes more than 1.25 times as long"


def test_what_a_state_has_brought_is_used_first() -> None:
    problem = constant(
        {"none": (4.0, 4.0), "bf16": (9.0, 9.0), "topk": (1.0, 1.0), "fp8": (1.1, 1.1), "natural": (7.0, 7.0)}
    )
    _, best, tried = propose(problem, uniform(problem, "topk"))
    assert (best, tried) == (2, [0, 3])
    plans, best, tried = propose(problem, uniform(problem, "natural"))
    assert (str(plans[best]), best, tried) == ("natural", 4, [0, 2, 3])


def test_after_a_look_what_is_five_percent_faster_is_tried_or_anything_faster_after_an_alarm() -> None:
    problem = constant({"none": (4.0, 4.0), "bf16": (9.0, 9.0), "topk": (1.0, 1.0), "fp8": (1.03, 1.03)})
    offered = [[Part(0, 1, name), Part(1, 2, name)] for name in ("none", "bf16", "fp8")]
    plans, tried = propose_again(problem, offered, 2, alarm=False, verified=True)
    assert [str(plan) for plan in plans] == ["none", "bf16", "fp8", "topk"]
    assert tried == []
    assert propose_again(problem, offered, 2, alarm=True, verified=True)[1] == [3, 0]
    assert propose_again(problem, offered, 2, alarm=False, verified=False)[1] == [0], "who never was shown to be faster"
    assert propose_again(problem, offered, 1, alarm=False, verified=True)[1] == [3, 0], "by far"
