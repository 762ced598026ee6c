"""Plans against known answers and against all combinations, over links that are only modelled."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from grace.auto.planner import GAIN, Part, Plan, Problem, better_baseline, find_lane, make_plan, shortlist
from grace.predict.timeline import Phase, hops, wire_bytes

NS = 1e-9
# bits of a number on the wire; seconds of encoding and of decoding one wire's number, of a call; kind
OPTIONS = {
    "none": ("AllReduce", 32.0, 0.0, 0.0, 0.0),
    "bf16": ("AllReduce", 16.0, 0.25 * NS, 0.2 * NS, 50e-6),
    "qsgd:bits=4": ("AllGather", 4.13, 0.31 * NS, 0.04 * NS, 60e-6),
    "efsignsgd": ("AllGather", 1.01, 0.32 * NS, 0.04 * NS, 60e-6),
    "topk": ("AllGather", 0.41, 0.31 * NS, 0.05 * NS, 60e-6),
}
SIZES = (6_750_000, 6_750_000, 1_200_000, 260_000)
Option = tuple[str, float, float, float, float]


def phases(option: Option, numbers: int, gbit: float, world: int = 4, alpha: float = 60e-6) -> list[Phase]:
    kind, bits, encode, decode, call = option
    size = bits * numbers / 8
    moved = wire_bytes(kind, size, world)
    line = 8 * 1514 / 1448 / gbit / 1e9
    cpu = 0.3 * NS if gbit < 1e5 else 0.0
    wires = world if kind == "AllGather" else 1
    move = (cpu * moved, hops(kind, world) * alpha + moved * max(line, cpu))
    return [(call + encode * numbers,) * 2, move, (call + decode * numbers * wires,) * 2]


def problem(
    gbit: float, sizes: Sequence[int] = SIZES, options: dict[str, Option] | None = None, **more: float
) -> Problem:
    options = options or OPTIONS
    ready = [0.45 + 0.47 * k / max(1, len(sizes) - 1) for k in range(len(sizes))]
    given = {"compute": 0.16, "threads": 1.0, "cores": 1.0, **more}
    return Problem(
        **given, ready=ready, numbers=sizes, methods=list(options),
        phases=lambda i, j, method: phases(options[method], sum(sizes[i:j]), gbit),
    )  # fmt: skip


def best_of_all(asked: Problem) -> float:
    """The best of all combinations of methods and of all ways to fuse."""
    count, best = len(asked.ready), float("inf")
    for cuts in itertools.product((0, 1), repeat=count - 1):
        edges = [0, *(k + 1 for k, cut in enumerate(cuts) if cut), count]
        spans = list(itertools.pairwise(edges))
        for methods in itertools.product(asked.methods, repeat=len(spans)):
            plan = asked.plan([Part(i, j, method) for (i, j), method in zip(spans, methods, strict=True)])
            assert plan is not None
            best = min(best, plan.seconds)
    return best


@pytest.mark.parametrize("gbit", [0.1, 1.0, 10.0, 100.0, 1e6])
def test_known_answers(gbit: float) -> None:
    asked = problem(gbit)
    plan, best = make_plan(asked), best_of_all(asked)
    base = better_baseline(asked, ("none", "bf16"))
    assert plan.seconds <= base.seconds
    assert plan.seconds <= 1.02 * best
    if gbit == 1e6:
        assert set(plan.methods) == {"none"}
        assert shortlist(asked, ("none", "bf16"), most=1)[0].methods[0] not in ("none", "bf16"), (
            "fp32 itself is no challenger"
        )
    if gbit == 0.1:
        assert set(plan.methods) <= {"topk", "efsignsgd"}


def test_never_slower_than_the_baselines_and_near_the_best() -> None:
    rng = random.Random(1)
    gaps = []
    for _ in range(60):
        sizes = [int(10 ** rng.uniform(3, 7.3)) for _ in range(rng.randint(1, 4))]
        options = {name: OPTIONS[name] for name in ("none", "bf16")} | {
            f"m{k}": (
                rng.choice(("AllGather", "AllReduce")), 10 ** rng.uniform(-1.3, 1.1), 10 ** rng.uniform(-11, -8.3),
                10 ** rng.uniform(-11, -9), 10 ** rng.uniform(-5, -3.3),
            )
            for k in range(2)
        }  # fmt: skip
        asked = problem(
            10 ** rng.uniform(-1, 2.5),
            sizes,
            options,
            compute=rng.uniform(0.01, 0.5),
            cores=rng.choice((0.5, 1.0, 2.0)),
        )
        plan = make_plan(asked)
        assert plan.seconds <= better_baseline(asked, ("none", "bf16")).seconds
        gaps.append(plan.seconds / best_of_all(asked) - 1)
    assert max(gaps) < 0.05
    assert sum(gap < 0.005 for gap in gaps) >= 54


def test_fusing_by_hand() -> None:
    """Ready at 10, 14, 20; sizes 1, 1, 2; one method costs 4 + size, the other 1 + 3 size: 14, 18, 26, and nothing fused."""
    costs = {"a": lambda size: 4 + size, "b": lambda size: 1 + 3 * size}
    sizes = (1, 1, 2)
    asked = Problem(
        20.0, 1.0, 2.0, [0.5, 0.7, 1.0], sizes, ["a", "b"],
        lambda i, j, method: [(0.0, float(costs[method](sum(sizes[i:j]))))],
    )  # fmt: skip
    plan = asked.plan(find_lane(asked))
    assert plan == Plan((Part(0, 1, "b"), Part(1, 2, "b"), Part(2, 3, "a")), 26.0)
    assert make_plan(asked).seconds == 26.0
    assert str(plan) == "b for 2 of 3 buckets, a for 1 of 3 buckets"


def test_small_buckets_travel_together_where_messages_are_slow() -> None:
    sizes = (1000, 1000, 1000, 1000)
    asked = Problem(
        0.01, 1.0, 2.0, [0.97, 0.98, 0.99, 1.0], sizes, ["none"],
        lambda i, j, method: [(0.0, 0.05 + 1e-9 * sum(sizes[i:j]))],
    )  # fmt: skip
    plan = make_plan(asked)
    assert len(plan.parts) == 1
    assert "4 buckets travel with a neighbour" in str(plan)
    assert not plan.uniform


def test_what_a_method_cannot_do_is_left_alone() -> None:
    asked = problem(0.1)
    allowed = asked.phases
    asked.phases = lambda i, j, method: None if method == "topk" and j > 2 else allowed(i, j, method)
    plan = make_plan(asked)
    assert "topk" not in plan.methods[2:]
    assert plan.seconds < better_baseline(asked, ("none", "bf16")).seconds


def test_what_is_tried_is_another_family_too() -> None:
    listed = shortlist(problem(0.1), ("none", "bf16"))
    assert len(listed) == 2
    assert not set(listed[0].methods) & set(listed[1].methods)
    assert listed[0].seconds < (1 - GAIN) * better_baseline(problem(0.1), ("none", "bf16")).seconds


def constant(costs: dict[str, tuple[float, ...]], kinds: dict[str, list[str]] | None = None) -> Problem:
    """Two buckets that a slow lane exchanges after the backward pass: ``costs`` gives each bucket's seconds by method."""
    return Problem(
        1.0, 1.0, 2.0, [1.0, 1.0], (10, 10), list(costs),
        lambda i, j, method: [(0.0, sum(costs[method][i:j]))], kinds=kinds or {},
    )  # fmt: skip


def test_a_mixture_must_be_predicted_to_gain_over_one_method_throughout() -> None:
    """a for one bucket and b for the other takes 1 + 0.7 seconds, a throughout 1.04 or 1.1 more."""
    near = {"none": (1.0, 1.0), "bf16": (0.9, 0.9), "a": (0.34, 0.4), "b": (0.6, 0.36)}
    assert make_plan(constant(near)).methods == ("a", "b")
    assert shortlist(constant(near), ("none", "bf16"))[0].methods == ("a", "a")
    far = {**near, "a": (0.34, 0.5)}
    assert shortlist(constant(far), ("none", "bf16"))[0].methods == ("a", "b")
    assert shortlist(constant(far), ("none", "bf16"))[1].methods == ("a", "a")


def test_what_travels_otherwise_is_tried_first_unless_it_is_far_behind() -> None:
    costs = {"none": (2.0, 2.0), "bf16": (1.9, 1.9), "a": (0.3, 0.3), "b": (0.35, 0.35), "c": (0.45, 0.45)}
    kinds = {"a": ["AllToAll", "AllGather"], "b": ["AllToAll", "AllGather"], "c": ["AllGather"]}

    def tried(costs: dict[str, tuple[float, ...]], kinds: dict[str, list[str]]) -> list[str]:
        return [plan.methods[0] for plan in shortlist(constant(costs, kinds), ("none", "bf16"))]

    assert tried(costs, kinds) == ["a", "c"]
    assert tried(costs, {**kinds, "c": kinds["a"]}) == ["a", "b"]
    assert tried({**costs, "c": (0.8, 0.8)}, kinds) == ["a", "b"]


def test_two_that_travel_alike_do_not_take_both_places() -> None:
    """bf16 is predicted to be the best; a and b, which are next, travel otherwise than it does, and c otherwise than these."""
    costs = {"none": (2.0, 2.0), "bf16": (0.3, 0.3), "a": (0.31, 0.31), "b": (0.32, 0.32), "c": (0.4, 0.4)}
    kinds = {"bf16": ["AllReduce"], "a": ["AllToAll"], "b": ["AllToAll"], "c": ["AllGather"]}

    def tried(kinds: dict[str, list[str]]) -> list[str]:
        return [plan.methods[0] for plan in shortlist(constant(costs, kinds), ("none", "bf16"))]

    assert tried(kinds) == ["a", "c"]
    assert tried({**kinds, "c": ["AllToAll"]}) == ["a", "b"]


def test_what_is_predicted_to_gain_less_than_3_percent_is_tried() -> None:
    costs = {"none": (2.0, 2.0), "bf16": (1.0, 1.0), "a": (0.99, 0.99), "b": (1.01, 1.01)}
    assert [plan.methods[0] for plan in shortlist(constant(costs), ("none", "bf16"))] == ["a", "b"]
