"""Plans that are offered, used first, and tried: once the model is known, and after each look."""

from __future__ import annotations

from collections.abc import Sequence

from grace.auto.classes import EXACT
from grace.auto.planner import Part, Plan, Problem, better_baseline, make_plan, shortlist

_FASTER = 0.95  # what a plan must be predicted to take, of the present one, to be tried after a look without an alarm
# Times the incumbent's prediction: who is predicted to take more is not tried, but for the better baseline.
_WORTH = 1.25


def propose(problem: Problem, loaded: Plan | None = None) -> tuple[list[Plan], int, list[int]]:
    """Plans, the number of the one that is used first, and the numbers of those to try, in their order.

    The first two are fp32 and bf16, the better one first. ``loaded``: a plan that a state has brought, which is used first.
    """
    base = better_baseline(problem, EXACT)
    other = problem.uniform(EXACT[1] if base.methods[0] == EXACT[0] else EXACT[0])
    assert other is not None
    plans = [base, other]
    plans += [plan for plan in shortlist(problem, EXACT) if plan.parts not in [other.parts for other in plans]]
    best = 2 if len(plans) > 2 and plans[2].cost < base.cost else 0
    if loaded is not None:
        parts = [plan.parts for plan in plans]
        best = parts.index(loaded.parts) if loaded.parts in parts else len(plans)
        plans += [loaded] if best == len(plans) else []
    most = _WORTH * plans[best].cost
    return plans, best, [k for k, plan in enumerate(plans) if k != best and (k == 0 or plan.cost <= most)]


def propose_again(
    problem: Problem, offered: Sequence[Sequence[Part]], current: int, *, alarm: bool, verified: bool
) -> tuple[list[Plan], list[int]]:
    """Plans after a look at the link, those ``offered`` first, and the numbers of those to try, in their order.

    Args:
        problem: by what is known now.
        offered: the parts of each plan so far.
        current: the number of the one that is used.
        alarm: whether steps have changed their pace: then whatever is predicted to be faster is tried, and the better
            baseline.
        verified: whether real steps have shown that what is used is no slower than the baselines.
    """
    known = [problem.plan(list(parts)) for parts in offered]
    plans = [plan for plan in known if plan is not None]
    best = make_plan(problem)
    number = next((k for k, plan in enumerate(plans) if plan.parts == best.parts), len(plans))
    plans += [best] if number == len(plans) else []
    used = plans[current].cost
    challengers = [number] if best.cost < _FASTER * used or (alarm and best.cost < used) else []
    if alarm or not verified or plans[0].cost < _FASTER * used:
        challengers.append(0)
    return plans, [k for k in dict.fromkeys(challengers) if k != current]
