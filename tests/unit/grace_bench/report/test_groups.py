import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from grace_bench.report import read
from grace_bench.report.groups import OVER_LIMIT, Spread, curve_of, group_runs, pareto, spread, thin
from grace_bench.report.ranking import crowns
from tests.unit.grace_bench.report.samples import run, run_of


def runs(*documents):
    return [run_of(document, f"{k}.json") for k, document in enumerate(documents)]


def only(groups, method="topk:ratio=0.01"):
    (group,) = [group for group in groups if group.first.method == method]
    return group


@st.composite
def spreads(draw):
    low, middle, high = sorted(draw(st.lists(st.integers(0, 9), min_size=3, max_size=3)))
    return Spread(middle, low, high)


points = st.lists(st.tuples(spreads(), spreads()), min_size=1, max_size=9)


@given(points)
def test_the_front_is_what_nothing_clearly_beats_and_is_never_empty(points):
    def beaten(k):
        cost, value = points[k]
        return any(
            (c.high < cost.low and v.high >= value.low) or (v.low > value.high and c.low <= cost.high)
            for c, v in points
        )

    kept = pareto(points)
    assert kept == [k for k in range(len(points)) if not beaten(k)]
    assert kept


def test_what_lies_within_each_others_ranges_is_not_crowned():
    def at(value, width):
        return Spread(value, value - width, value + width)

    dear, cheap = (at(10, 0), at(0.93, 0.01)), (at(1, 0), at(0.925, 0.01))
    assert pareto([dear, cheap]) == [1]  # the better median is no better: its price buys nothing
    assert pareto([(at(10, 0), at(0.93, 0.001)), (cheap[0], at(0.925, 0.001))]) == [0, 1]
    assert pareto([dear, dear]) == [0, 1]
    assert not at(1, 0).ahead(Spread(2, 1, None), higher=False)
    assert at(1, 0).ahead(Spread(None, None, 0.5), higher=True)


def test_one_run_has_the_range_of_its_steps_and_of_nothing_else():
    group = only(group_runs(runs(run()))[0])
    step, speed, final = (group.measures[name] for name in ("step_ms", "throughput", "final"))
    assert step.low < step.median < step.high
    assert speed.low < speed.median < speed.high
    assert final.low == final.median == final.high


def test_others_are_held_against_fp32():
    def find_fp32(*methods):
        return [group.first.method for group in group_runs(runs(*map(run, methods)))[0] if group.fp32]

    assert find_fp32("topk", "none", "ddp-fp32") == ["ddp-fp32"]
    assert find_fp32("topk", "none") == ["none"]
    assert find_fp32("topk") == []


def test_toolkits_are_places_of_their_own():
    there = runs(*(run(method, seed=seed) for seed in (0, 1) for method in ("none", "dgc")))
    jax = [
        read.Run(run.file, msgspec.structs.replace(run.document, toolkit="jax"))
        for run in there
        if run.document.method == "dgc"
    ]
    groups = group_runs([*(run for run in there if run.document.method == "none"), *jax])[0]
    assert all(group.front_throughput for group in groups)
    assert {group.label for group in groups} == {"none", "dgc"}


def test_a_spread_is_the_median_and_the_range():
    assert spread([5, 1, 3]) == spread([1, 3, 5])
    two = spread([1.0, 2.0])
    assert (two.median, two.low, two.high) == (1.5, 1.0, 2.0)


def test_what_was_not_measured_is_left_out_but_what_failed_counts_as_worst():
    assert spread([None, 4.0]).median == 4.0
    failed = spread([0.9, None, 0.8], strict=True)
    assert (failed.median, failed.low, failed.high) == (0.8, None, 0.9)
    assert spread([None, None, 0.9], strict=True).median is None
    slow = spread([10.0, None, 20.0], higher=False, strict=True)
    assert (slow.median, slow.low, slow.high) == (20.0, 10.0, None)
    assert spread([0.9, None], strict=True).median is None  # no middle between a number and nothing


@given(st.lists(st.one_of(st.none(), st.floats(-5, 5)), min_size=1, max_size=400), st.integers(4, 40))
def test_thinning_keeps_the_ends_and_the_extremes(values, limit):
    kept = thin(values, limit)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(limit, 4)
    assert {0, len(values) - 1} <= set(kept)
    there = [value for value in values if value is not None]
    if there:
        assert {min(there), max(there)} <= {values[k] for k in kept}


def test_seeds_make_one_group_and_everything_else_makes_another():
    changes = [{}, {"seed": 1}, {"seed": 2}, {"link": "1gbit"}, {"workers": 2}, {"task": "other"}, {"granularity": "model"},
               {"steps": 10}, {"transport": "mpi"}]  # fmt: skip
    groups, older = group_runs(runs(*(run(**change) for change in changes)))
    assert older == []
    assert sorted(len(group.runs) for group in groups) == [1, 1, 1, 1, 1, 1, 3]
    labels = {group.label for group in groups if group.first.link.name == "none" and group.first.workers == 4
              and group.first.task == "digits" and group.first.transport == "gloo"}  # fmt: skip
    settings = ("parameter, 400 steps", "model, 400 steps", "parameter, 10 steps")
    assert labels == {f"topk:ratio=0.01 ({setting})" for setting in settings}


def in_round(number, method, step, *, limit=None):
    """A run of a round whose step takes ``step`` ms."""
    made = run_of(run(method, link="1gbit"), f"{method}{number}")
    time = replace(made.document.time, step_ms=replace(made.document.time.step_ms, median=step))
    return read.Run(made.file, replace(made.document, round=number, time=time))


def test_a_step_is_held_against_the_limit_of_its_own_round():
    # the machine is three times as slow in the third round: what a method costs stays the same
    steps = {"no-communication": (100.0, 110.0, 300.0), "topk:ratio=0.01": (120.0, 121.0, 390.0)}
    points = [in_round(number, method, step) for method, of in steps.items() for number, step in enumerate(of)]
    groups, older = group_runs(points)
    assert older == []
    group = only(groups)
    assert (group.seeds, group.rounds, len(group.runs)) == (1, 3, 3)
    assert group.measures[OVER_LIMIT] == Spread(1.2, pytest.approx(1.1), 1.3)
    assert only(groups, "no-communication").measures[OVER_LIMIT] == Spread(1, 1, 1)
    alone, _ = group_runs(points[3:])
    assert only(alone).measures[OVER_LIMIT] == Spread(None, None, None)


def test_rounds_of_one_seed_say_nothing_about_another():
    points = [in_round(number, method, 100) for method in ("topk:ratio=0.01", "bf16") for number in range(3)]
    groups, _ = group_runs(points)
    assert crowns(groups, "final") == set()
    assert not any(group.front_throughput or group.front_sent for group in groups)


def test_medians_over_seeds_are_those_of_the_runs():
    given_runs = runs(*(run(seed=seed, link="1gbit") for seed in (0, 1, 2)))
    group = only(group_runs(given_runs)[0])
    finals = sorted(run.document.final for run in given_runs)
    assert group.measures["final"].median == finals[1]
    assert (group.measures["final"].low, group.measures["final"].high) == (finals[0], finals[-1])
    assert group.measures["step_ms"].median == sorted(run.row["step_ms"] for run in given_runs)[1]
    errors = sorted(run.row["predicted_step_ms"] / run.row["step_ms"] - 1 for run in given_runs)
    assert group.measures["prediction_error"].median == errors[1]


def test_a_newer_run_of_the_same_seed_replaces_the_older():
    old, new = run(created="2026-01-01T00:00:00+00:00", final=0.1), run(created="2026-02-01T00:00:00+00:00", final=0.2)
    groups, older = group_runs(runs(new, old))
    assert only(groups).measures["final"].median == 0.2
    assert [name for name, _ in older] == ["1.json"]


def test_failed_runs_are_in_no_group():
    assert group_runs(runs(run(error="no")))[0] == []


def test_time_to_target_counts_seeds_that_missed_it_as_worst():
    def document(seed, seconds):
        return run(seed=seed) | {"target": {"value": 0.9, "seconds": seconds, "epoch": None, "step": None}}

    def group(*times):
        return only(group_runs(runs(*(document(k, time) for k, time in enumerate(times))))[0])

    assert (group(3.0, 1.0, 2.0).measures["target_seconds"].median, group(3.0, 1.0, 2.0).reached) == (2.0, 3)
    assert (group(3.0, 1.0, None).measures["target_seconds"].median, group(3.0, 1.0, None).reached) == (3.0, 2)
    assert group(3.0, None, None).measures["target_seconds"].median is None


def test_a_curve_is_over_the_evaluations_that_all_seeds_have():
    short = run(seed=1)
    short["curve"] = short["curve"][:-3]
    curve = curve_of(runs(run(), short))
    assert curve.step == [point["step"] for point in short["curve"]]
    assert curve.quality[5].low <= curve.quality[5].median <= curve.quality[5].high
    assert curve.evaluations == 22


def test_a_diverged_run_leaves_a_gap_in_its_curve_and_is_on_no_front():
    document = run(final=None)
    for point in document["curve"][10:]:
        point["metrics"]["accuracy"] = None
    group = only(group_runs(runs(document))[0])
    assert [value.median is None for value in group.curve.quality] == [False] * 10 + [True] * 15
    assert not group.front_throughput
    assert not group.front_sent


def test_fronts_are_marked_within_a_place_in_both_directions_and_never_for_the_limit():
    def document(method, speed, value, sent, *, seed=0, **more):
        made = run(method, seed=seed, **more)
        made["final"], made["time"]["samples_per_second"], made["traffic"]["sent_bytes_per_step"] = value, speed, sent
        made["time"]["step_ms"] = dict.fromkeys(("median", "low", "high"), 1.0)
        return made

    def front(groups, name):
        return {group.first.method for group in groups if getattr(group, name)}

    for (lower, sign), single in itertools.product(
        ((False, 1), (True, -1)), ((), ("none",), ("none", "dgc", "onebit"))
    ):
        all_runs = [
            document(method, speed, sign * value, sent, seed=seed, lower=lower, link=link)
            for method, speed, value, sent, link in (
                ("none", 10, 5, 100, "none"), ("dgc", 20, 4, 10, "none"), ("onebit", 15, 3, 10, "none"),
                ("no-communication", 99, 9, 0, "none"), ("eden", 99, 9, 1, "1gbit"),
            )
            for seed in ((0,) if method in single else (0, 1))
        ]  # fmt: skip
        groups, _ = group_runs(runs(*all_runs))
        for name in ("front_throughput", "front_sent"):
            assert front(groups, name) == {"none", "dgc", "eden"} - set(single), "one run has no range: no front"


def test_labels_tell_all_groups_of_a_place_apart():
    documents = [
        run(granularity=grain, steps=steps) for grain, steps in itertools.product(("parameter", "model"), (10, 20))
    ]
    labels = [group.label for group in group_runs(runs(*documents))[0]]
    assert len(set(labels)) == 4
