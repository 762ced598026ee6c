import pytest

import grace
from benchmarks.codecs.goals import GOALS, goals_of, position
from benchmarks.codecs.plan import LARGE, BoardPlan, board_plan
from grace_bench.codecs.clock import OPERATIONS
from grace_bench.codecs.plan import canonical


def test_by_default_every_registered_method_and_every_goal_is_measured():
    plan = board_plan()
    assert {canonical(name) for name in grace.methods()} <= set(plan.methods)
    assert all(any(goal.is_about(name) for name in plan.methods) for goal in GOALS if goal.method is not None)
    assert len(set(plan.methods)) == len(plan.methods)
    assert (plan.sizes, plan.samples) == ((4096, 262_144, 1_000_000, 6_500_000, 25_000_000), 9)


def test_what_has_no_goal_is_measured_small_and_with_the_fewest_threads_unless_it_was_named():
    plan = board_plan(threads="1,2")
    assert plan.covers("topk", LARGE, 2)
    assert plan.covers("sketchml", LARGE - 1, 1)
    assert not plan.covers("sketchml", LARGE, 1)
    assert not plan.covers("sketchml", LARGE - 1, 2)
    assert not board_plan("all", threads="1,2").covers("sketchml", LARGE, 2)
    assert board_plan("sketchml", threads="1,2").covers("sketchml", LARGE, 2)


def test_quick_changes_only_what_was_not_said():
    quick = board_plan(quick=True)
    assert (quick.sizes, quick.threads, quick.samples) == ((4096, 1_000_000), (1,), 3)
    assert not quick.covers("sketchml", LARGE, 1)
    assert board_plan("topk", "8K", "2,1,2", 5, limit=3, quick=True) == BoardPlan(
        ("topk",), (8192,), (1, 2), 5, 3, named=True
    )


def test_what_takes_long_is_known_before():
    seconds = {size: board_plan("topk,sketchml", size, "1").seconds() for size in ("4K", "1M", "25M")}
    assert 0 < seconds["4K"] < seconds["1M"] < seconds["25M"]
    assert board_plan("topk,sketchml", "1M,25M", "1,2").seconds() == pytest.approx(2 * (seconds["1M"] + seconds["25M"]))
    assert board_plan(threads="1,2").seconds() < 600
    assert [name for name, _ in board_plan("topk", "4K", "1").jobs(4096, 1)] == ["yardsticks", "parts", "topk"]


def test_groups_stand_among_methods():
    plan = board_plan("goals,powersgd:rank=2")
    assert set(plan.methods) == {*board_plan("goals").methods, "powersgd:rank=2"}
    assert plan.covers("powersgd:rank=2", LARGE, 1)


def test_every_goal_can_be_measured():
    names = [goal.row for goal in GOALS]
    assert len(set(names)) == len(names)
    for goal in GOALS:
        assert goal.stretch is None or goal.stretch < goal.value
        if goal.method is not None:
            assert goal.operation in OPERATIONS
            assert canonical(goal.method) == goal.method


def test_goals_by_size_method_and_threads():
    (small,) = goals_of("encode with error feedback", "topk:ratio=0.01", 4096)
    assert (small.value, small.unit) == (12.0, "us")
    (large,) = goals_of("encode with error feedback", "topk", 25_000_000)
    assert (large.limit(1), large.limit(2)) == (1.8, pytest.approx(2.34))
    assert goals_of("encode with error feedback", "topk", 262_144) == []
    assert {goal.kernels for goal in goals_of("encode", "natural", 6_500_000)} == {None, "native-base"}
    assert position(GOALS[3].row) == 3
    assert position("no such row") == len(GOALS)
