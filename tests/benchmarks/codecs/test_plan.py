import pytest

import grace
from grace.bench.codecs.goals import GOALS, OPERATIONS, canonical, goals_of, position
from grace.bench.codecs.plan import LARGE, Plan, parse_sizes, size_text
from grace.errors import ConfigurationError, UnknownNameError


def test_sizes_as_they_are_written():
    assert parse_sizes("4K, 1000,6.5M,25m") == [4096, 1000, 6_500_000, 25_000_000]
    assert [size_text(size) for size in (4096, 1000, 262_144, 6_500_000, 4096 * 1024)] == [
        "4K", "1000", "256K", "6.5M", "4096K"
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "4G", "-1", "1.5", "0.0001K", "4K,"])
def test_sizes_that_are_none(text):
    with pytest.raises(ConfigurationError, match=r"legal: such as 4096, 256K or 6\.5M"):
        parse_sizes(text)


def test_by_default_every_registered_method_and_every_goal_is_measured():
    plan = Plan.of()
    assert {canonical(name) for name in grace.methods()} <= set(plan.methods)
    assert all(any(goal.is_about(name) for name in plan.methods) for goal in GOALS if goal.method is not None)
    assert len(set(plan.methods)) == len(plan.methods)
    assert (plan.sizes, plan.samples) == ((4096, 262_144, 1_000_000, 6_500_000, 25_000_000), 9)


def test_what_has_no_goal_is_measured_small_and_with_the_fewest_threads_unless_it_was_named():
    plan = Plan.of(threads="1,2")
    assert plan.covers("topk", LARGE, 2)
    assert plan.covers("sketchml", LARGE - 1, 1)
    assert not plan.covers("sketchml", LARGE, 1)
    assert not plan.covers("sketchml", LARGE - 1, 2)
    assert not Plan.of("all", threads="1,2").covers("sketchml", LARGE, 2)
    assert Plan.of("sketchml", threads="1,2").covers("sketchml", LARGE, 2)


def test_quick_changes_only_what_was_not_said():
    quick = Plan.of(quick=True)
    assert (quick.sizes, quick.threads, quick.samples) == ((4096, 1_000_000), (1,), 3)
    assert not quick.covers("sketchml", LARGE, 1)
    assert Plan.of("topk", "8K", "2,1,2", 5, limit=3, quick=True) == Plan(("topk",), True, (8192,), (1, 2), 5, 3)


def test_what_takes_long_is_known_before():
    seconds = {size: Plan.of("topk,sketchml", size, "1").seconds() for size in ("4K", "1M", "25M")}
    assert 0 < seconds["4K"] < seconds["1M"] < seconds["25M"]
    assert Plan.of("topk,sketchml", "1M,25M", "1,2").seconds() == pytest.approx(2 * (seconds["1M"] + seconds["25M"]))
    assert Plan.of(threads="1,2").seconds() < 600
    assert [name for name, _ in Plan.of("topk", "4K", "1").jobs(4096, 1)] == ["yardsticks", "parts", "topk"]


def test_groups_stand_among_methods():
    plan = Plan.of("goals,powersgd:rank=2")
    assert set(plan.methods) == {*Plan.of("goals").methods, "powersgd:rank=2"}
    assert plan.covers("powersgd:rank=2", LARGE, 1)


def test_one_method_in_two_spellings_is_measured_once():
    assert Plan.of("topk:ratio=0.01,topk,randomk:ratio=0.01").methods == ("randomk", "topk")
    assert canonical("qsgd:bits=8,memory=none") == "qsgd:bits=8"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chosen": "topkk"}, "did you mean 'topk'"),
        ({"sizes": "0"}, "sizes=.*1 to 1,000,000,000"),
        ({"threads": "0"}, "threads=.*1 to 1,024"),
        ({"threads": "two"}, "legal: such as 1,2"),
        ({"samples": 2}, "samples=2.*3 to 1,000"),
        ({"limit": 0.0}, "limit=0.0.*seconds > 0"),
        ({"budget": -1.0}, "budget=-1.0.*seconds > 0"),
    ],
)
def test_what_is_not_legal(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Plan.of(**arguments)


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


def test_an_unknown_method_has_no_canonical_form():
    with pytest.raises(UnknownNameError):
        canonical("nothing_of_the_kind")
