"""Methods that ``auto`` may use, by what the survey knows."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

import grace
from benchmarks.evidence import write_known
from grace.auto import classes
from grace.auto.classes import (
    Frontier,
    Known,
    Quality,
    StepsMultiple,
    beside_scattered,
    evidence_of,
    extrapolates,
    factor_of,
    known,
    permitted,
    steps_of,
)
from grace.errors import ConfigurationError, InputError
from grace.run.optimizer import Settings
from grace_bench.survey.evidence import Quality as Measured
from grace_bench.survey.evidence import limit_of
from grace_bench.survey.frontier import How, Multiple, Place

CLASSES: tuple[Quality, ...] = ("exact", "safe", 0.1, 0.25)


def test_classes_hold_each_other_and_begin_with_what_is_compared() -> None:
    for world in (2, 4, 16):
        held = [permitted(quality, world)[0] for quality in CLASSES]
        assert held[0] == ["none", "bf16"]
        for smaller, larger in itertools.pairwise(held):
            assert set(smaller) <= set(larger)
            assert larger[:2] == ["none", "bf16"]
    assert permitted("safe", 4) == permitted(0.02, 4)
    assert len(held[3]) > len(held[1]) > 2


def test_what_is_in_a_class_can_be_made_and_was_measured() -> None:
    for name, of in known().items():
        assert grace.spell(grace.method(name)) == name
        if of.limit is not None:
            assert of.tasks >= 2
            assert of.loss is not None
        if of.steps is not None:
            assert of.steps.low <= of.steps.median <= of.steps.high < math.inf


def test_what_many_workers_make_dear_is_left_out() -> None:
    few, many = permitted("safe", 2), permitted("safe", 64)
    gathered = [name for name in few[0] if name in many[1]]
    assert gathered
    assert "sends no less than bf16 among 64 workers" in many[1][gathered[0]]


def test_what_needs_another_optimizer_is_left_out() -> None:
    momentum = Settings(momentum=0.9, lr=0.1)
    names, left_out = permitted(0.25, 2, momentum, ["dgc", "topk"])
    assert names == ["none", "bf16", "topk"]
    assert left_out == {"dgc": "needs momentum 0 (it is 0.9)"}
    assert permitted(0.25, 2, Settings(momentum=0.0, lr=0.1), ["dgc"])[0] == ["none", "bf16", "dgc"]
    assert "dgc" in permitted(0.25, 2, None, ["dgc"])[1], "unknown is not met"


def test_what_is_named_need_not_be_in_the_class_but_exist() -> None:
    assert permitted("exact", 2, None, ["topk:ratio=0.001"])[0] == ["none", "bf16", "topk:ratio=0.001"]
    with pytest.raises(ConfigurationError, match="topc"):
        permitted("safe", 2, None, ["topc"])


def test_memories_can_be_left_out() -> None:
    names, left_out = permitted("safe", 2, None, ["topk", "qsgd:bits=4"], memoryless=True)
    assert names == ["none", "bf16", "qsgd:bits=4"]
    assert "has a memory" in left_out["topk"]


def test_on_how_little_it_rests_is_said() -> None:
    assert evidence_of("none") == "the sum itself"
    assert evidence_of("topk:ratio=0.123") == "nobody measured it"
    assert str(Known(0.0, 0.013, "ncf_small", 4, 12)) == "at worst 1.3% below fp32 on ncf_small (4 tasks, 12 runs)"
    assert str(Known(None, None, "digits", 1, 1)).startswith("diverged on digits")
    assert str(Known(0.0, -0.01, "digits", 2, 6)).startswith("at worst not below fp32")


PLAIN = Measured(3, 0.80, 0.79, 0.81, 1.0, True)
CLOSE = Measured(3, 0.79, 0.78, 0.80, 0.1, True)
WORSE = Measured(3, 0.70, 0.69, 0.71, 0.1, True)
MUCH = Measured(3, 0.50, 0.49, 0.51, 0.1, True)
LOST = Measured(3, -math.inf, -math.inf, -math.inf, float("nan"), True)
ONCE = Measured(3, 0.79, -math.inf, 0.80, 0.1, True)  # one of three diverged
FEW = Measured(1, 0.79, None, None, 0.1, True)


@pytest.mark.parametrize(
    ("on_a", "on_b", "limit"),
    [
        (CLOSE, CLOSE, 0.0),
        (CLOSE, WORSE, 0.125),
        (WORSE, MUCH, 0.375),
        (LOST, CLOSE, None),
        (CLOSE, ONCE, None),
        (CLOSE, FEW, None),
    ],
)
def test_the_rule(on_a: Measured, on_b: Measured, limit: float | None) -> None:
    table = {("survey", task, 1): {"none": PLAIN, "topk": quality} for task, quality in (("a", on_a), ("b", on_b))}
    text = write_known(table, dict.fromkeys(table, "accuracy"))
    assert json.loads(text)["methods"]["topk"]["limit"] == limit


def test_long_runs_on_two_tasks_replace_short_ones() -> None:
    table = {("survey", task, 100): {"none": PLAIN, "topk": MUCH} for task in ("a", "b")}
    table[("long", "c", 5000)] = {"bf16": PLAIN, "topk": CLOSE}
    assert limit_of("topk", table) == pytest.approx(0.375), "one long run is not enough"
    table[("long", "d", 5000)] = {"bf16": PLAIN, "topk": WORSE}
    assert limit_of("topk", table) == pytest.approx(0.125), "beside bf16, where fp32 was not run"
    table[("long", "d", 5000)] = {"bf16": PLAIN, "topk": FEW}
    assert limit_of("topk", table) == pytest.approx(0.375), "nor are few seeds"


def multiple(high: float | None, how: How = "reached") -> Place:
    low = None if high is None else 0.9 * high
    median = math.inf if high is None else 0.95 * high
    return Place(CLOSE, 0.0, Multiple(how, median, low, high, 1.0, 3, 3), 1.0, 0.1, True)


@pytest.mark.parametrize(
    ("a", "b", "high"),
    [
        (multiple(1.2), multiple(1.4), 1.4),
        (multiple(1.2), multiple(None, "not reached"), None),
        (multiple(1.2), None, None),
        (multiple(1.2), multiple(math.inf), None),
    ],
)
def test_steps_are_those_of_the_task_with_most_and_known_on_two(a: Place, b: Place | None, high: float | None) -> None:
    table = {("long", task, 5000): {"none": PLAIN, "topk": CLOSE} for task in ("a", "b")}
    places = {("long", "a", 5000): {"topk": a}, **({("long", "b", 5000): {"topk": b}} if b else {})}
    steps = json.loads(write_known(table, dict.fromkeys(table, "accuracy"), places))["methods"]["topk"]["steps"]
    assert (steps and steps["high"]) == high
    if steps:
        assert steps["task"] == "b"


FOUND = {
    "topk": Known(None, 0.2, "a", 2, 6, StepsMultiple(1.5, 1.3, 1.7, "a")),
    "qsgd:bits=4": Known(0.0, 0.0, "a", 2, 6, StepsMultiple(0.9, 0.8, 0.95, "a")),
    "efsignsgd": Known(0.1, 0.1, "a", 2, 6),
}


def test_the_goal_time_has_what_reached_bf16_and_says_why_others_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        classes,
        "frontier",
        lambda: Frontier({grace.spell(grace.method(name)): of for name, of in FOUND.items()}, (4,), ("torch",)),
    )
    assert set(permitted("safe", 4, goal="time")[0]) == {"none", "bf16", "topk", "qsgd:bits=4"}
    names, left_out = permitted("safe", 4, None, ["topk", "efsignsgd"], goal="time")
    assert names == ["none", "bf16", "topk"]
    assert left_out["efsignsgd"] == "nobody measured how many steps it takes to bf16's quality"
    assert (factor_of("topk"), factor_of("bf16"), factor_of("efsignsgd")) == (1.7, 1.0, None)
    assert factor_of("qsgd:bits=4") == 1.0, "who came there sooner by chance counts as much as bf16"
    assert steps_of("topk") == "1.5 times bf16's steps (1.3 to 1.7) on a"
    assert steps_of("efsignsgd") == "not known"


def test_scatter_reduce_is_beside_where_it_sends_less() -> None:
    assert beside_scattered(["qsgd:bits=4", "bf16"], 2) == ["qsgd:bits=4", "bf16"]
    both = ["qsgd:bits=4", "qsgd:bits=4,communicator=scatterreduce"]
    assert beside_scattered(["qsgd:bits=4"], 8) == both
    assert beside_scattered(["natural"], 8) == ["natural", "natural:communicator=scatterreduce"]
    assert beside_scattered(["qsgd:bits=4,communicator=allgather"], 8) == ["qsgd:bits=4,communicator=allgather"]
    assert beside_scattered(["powersgd"], 8) == ["powersgd"]
    assert permitted("safe", 64, None, ["qsgd:bits=4"])[0] == ["none", "bf16", both[1]]


def test_what_a_run_extrapolates_is_told() -> None:
    assert extrapolates(4) == ()
    eight, local = extrapolates(8, ["the changes of several local steps"])
    assert eight == "measured with 4 workers and gradients of torch; taken to hold for 8 workers"
    assert local.endswith("taken to hold for the changes of several local steps")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "is no frontier of the survey"),
        (lambda text: text.replace('"version": 1', '"version": 7'), "version 7; legal: 'grace.frontier', 1"),
        (lambda text: "[]", "is no frontier"),
        (lambda text: text.replace('"limit"', '"limits"'), "is no frontier"),
    ],
)
def test_a_table_that_is_cut_or_of_another_version_is_refused(
    tmp_path: Path, damage: Callable[[str], str], message: str
) -> None:
    path = tmp_path / "frontier.json"
    path.write_text(damage(classes.PATH.read_text()))
    with pytest.raises(InputError, match=message):
        classes.read_frontier(path)
    with pytest.raises(InputError, match="install Grace again"):
        classes.read_frontier(tmp_path / "absent.json")


def test_the_table_says_where_it_is_from() -> None:
    table = classes.frontier()
    assert table.workers == (4,)
    assert table.sources[0]["file"] == "archive.parquet"
    assert table.sources[0]["runs"] > 1000
