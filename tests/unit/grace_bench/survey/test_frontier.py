"""The frontier: quality at equal steps, steps to bf16's quality, and bytes, of runs whose answers are known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from grace_bench.survey import archive as archives
from grace_bench.survey import frontier
from grace_bench.survey.archive import write_archive
from grace_bench.survey.frontier import Multiple, climb, find_frontier, find_hopeless, multiple_of
from grace_bench.survey.row import SurveyRow
from tests.unit.grace_bench.survey.tiny import assert_one_line, call

TEN = list(range(0, 1100, 100))


def run(method: str, values: list[float | None], seed: int = 0, sent: int = 100, **more: Any) -> SurveyRow:
    """A run of which lower is better, evaluated every 100 steps, that sends so many bytes a step."""
    at = [100 * k for k in range(len(values))]
    given: dict[str, Any] = {
        "protocol": "long",
        "task": "digits_small",
        "method": method,
        "recipe": method,
        "workers": 4,
        "seed": seed,
        "steps": at[-1],
        "steps_per_epoch": 100,
        "batch": 4,
        "optimizer": "SGD",
        "peak_lr": 0.1,
        "momentum": None,
        "why": None,
        "metric": "loss",
        "better": "lower",
        "final": values[-1],
        "best": None,
        "diverged": None if values[-1] is not None else at[-1],
        "at": at,
        "values": values,
        "sent": [sent * step for step in at],
        "parameters": 1000,
        "rounds": 1,
        "data": "d",
        "digest": "f",
        "source": "embedded",
        "procedural": False,
        "grace": "0.3",
        "torch": "2.13",
        "numpy": "2.0",
        "python": "3.11",
        "device": "cpu",
        "command": "",
        "cpu_seconds": 1.0,
        **more,
    }
    return SurveyRow(**given)


def falls(to: float, after: int, end: float | None = None) -> list[float | None]:
    """Ten evaluations that come to ``to`` at this one, and end there or at ``end``."""
    return [*([10.0] * after), *([to] * (10 - after)), to if end is None else end]


BF16 = [run("bf16", falls(2.0, 5), seed, 400) for seed in range(3)]  # reach their quality after 500 steps


def test_steps_to_the_quality_of_bf16_are_a_multiple_of_its_own() -> None:
    half_as_fast = [run("topk", falls(2.0, 10), seed, 10) for seed in range(3)]
    of = find_frontier([*BF16, *half_as_fast])["long", "digits_small", 1000]
    steps = of["topk"].steps
    assert (steps.how, steps.median, steps.seeds, steps.reached) == ("reached", 2.0, 3, 3)
    assert (steps.low, steps.high) == (900 / 500, 1000 / 400), (
        "it came there since the evaluation before, and so did bf16"
    )
    assert (of["topk"].share, of["topk"].sent, of["topk"].loss) == (10 / 400, 10, 0)
    assert of["bf16"].steps.median == of["bf16"].steps.high == 1


def test_what_ends_within_2_percent_counts_as_there_and_what_does_not_says_so() -> None:
    near = multiple_of([run("topk", falls(2.0, 10, 2.03))], BF16, 2.04)
    assert (near.how, near.median) == ("reached", 2.0)
    short = multiple_of([run("topk", falls(2.1, 3))], BF16, 2.04)
    assert short == Multiple("not reached", math.inf, None, None, 2.0, 1, 0)
    assert str(short) == "not reached, over 2 (1 seed)"


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_fewer_than_three_seeds_have_no_interval_and_are_told(seeds: int) -> None:
    steps = multiple_of([run("topk", falls(2.0, 6), seed) for seed in range(seeds)], BF16, 2.04)
    assert (steps.high is None) == (seeds < 3)
    assert ("seed" in str(steps)) == (seeds < 3)
    few = multiple_of([run("topk", falls(2.0, 6), seed) for seed in range(3)], BF16[:seeds], 2.04)
    assert (few.high is None) == (seeds < 3), "nor where bf16 has fewer"


def test_where_bf16_was_trained_for_other_lengths_a_run_that_ends_short_is_matched() -> None:
    shorter = [run("bf16", [10.0, *[4.0] * 5], seed, 400, protocol="half") for seed in range(3)]  # 500 steps: 4
    behind = [run("topk", falls(3.0, 10), seed, 10) for seed in range(3)]  # 1000 steps: 3
    of = find_frontier([*BF16, *shorter, *behind])["long", "digits_small", 1000]["topk"].steps
    assert of.how == "matched"
    assert of.median == pytest.approx(math.sqrt(2)), "bf16 ends there after 707 steps, half way in the logarithm"
    assert of.high == pytest.approx(math.sqrt(2))
    rate = [msgspec.structs.replace(row, peak_lr=0.2) for row in shorter]
    other = find_frontier([*BF16, *rate, *behind])["long", "digits_small", 1000]["topk"].steps
    assert other.how == "not reached", "another learning rate is another schedule"
    worse = [run("topk", falls(5.0, 10), seed, 10) for seed in range(3)]
    beyond = find_frontier([*BF16, *shorter, *worse])["long", "digits_small", 1000]["topk"].steps
    assert beyond.how == "not reached", "below the shortest run nobody knows"


def test_who_came_there_and_diverged_has_not_reached_it() -> None:
    whole = [run("topk", falls(2.0, 5), seed, 10) for seed in (0, 1)]
    lost = run("topk", [*falls(2.0, 5)[:8], None], 2, 10, steps=1000)
    steps = multiple_of([*whole, lost], BF16, 2.04)
    assert (steps.how, steps.reached, steps.high) == ("not reached", 2, None)


@pytest.mark.parametrize("end", [2.0, 0.0])
@pytest.mark.parametrize("sent", [400, 0])
def test_where_bf16_is_nothing_to_divide_by_there_is_no_frontier(end: float, sent: int) -> None:
    rows = [run("bf16", falls(end, 5), 0, sent), run("topk", falls(end + 1, 5), 0, sent)]
    assert bool(find_frontier(rows)) == (end > 0 and sent > 0)


@pytest.mark.parametrize("goal", [0.98, -1.02])
def test_where_higher_is_better_and_below_zero_it_is_counted_alike(goal: float) -> None:
    more = {"better": "higher"}
    end, start = (1.0, 0.0) if goal > 0 else (-1.0, -2.0)
    plain = [run("bf16", [start] * 5 + [end] * 6, seed, 400, **more) for seed in range(3)]
    late = [run("topk", [start] * 10 + [end], seed, 10, **more) for seed in range(3)]
    of = find_frontier([*plain, *late])["long", "digits_small", 1000]["topk"]
    assert (of.steps, of.loss) == (multiple_of(late, plain, goal), 0)
    assert (of.steps.median, of.steps.low, of.steps.high) == (2.0, 900 / 500, 1000 / 400)


def test_where_bf16_was_there_at_its_first_evaluation_there_is_no_upper_end() -> None:
    soon = [run("bf16", falls(2.0, 1), seed, 400) for seed in range(3)]
    assert multiple_of([run("topk", falls(2.0, 2), seed) for seed in range(3)], soon, 2.04).high == math.inf
    there = [run("topk", falls(2.0, 0), seed) for seed in range(3)]
    steps = multiple_of(there, BF16, 2.04)
    assert (steps.how, steps.median, steps.low, steps.high) == ("reached", 1 / 500, 0, 1 / 400), "at step 0"


def test_a_rung_is_found_between_two() -> None:
    assert climb([(100, 0.5), (1000, 0.7)], 0.5, higher=True) == pytest.approx(100)
    assert climb([(100, 0.5), (1000, 0.7)], 0.6, higher=True) == pytest.approx(10**2.5)
    assert climb([(100, 0.5), (1000, 0.7)], 0.8, higher=True) is None
    assert climb([(100, 0.5), (1000, 0.4)], 0.45, higher=True) is None, "a longer run that ends worse is no ladder"


def screened(**more: tuple[float, int]) -> dict[str, frontier.Place]:
    rows = [run(name, falls(end, 5), 0, sent) for name, (end, sent) in more.items()]
    return find_frontier([run("bf16", falls(2.0, 5), 0, 400), *rows])["long", "digits_small", 1000]


def test_the_frontier_has_what_nothing_cheaper_ends_better_than() -> None:
    of = screened(topk=(2.2, 10), onebit=(2.3, 20), drive=(2.1, 30))
    assert {name for name, place in of.items() if place.on_frontier} == {"topk", "drive", "bf16"}


def test_of_equal_bytes_only_the_best_is_on_the_frontier() -> None:
    of = screened(acpsgd=(2.3, 10), powersgd=(2.2, 10))
    assert [name for name, place in of.items() if place.on_frontier] == ["powersgd", "bf16"]


def test_hopeless_is_what_is_beaten_on_both_axes_by_a_margin() -> None:
    of = screened(topk=(2.2, 10), worse=(3.0, 20), near=(2.25, 20), little=(4.0, 11), dear=(2.2, 300))
    assert [(beaten.method, beaten.rival) for beaten in find_hopeless(of)] == [("worse", "topk")]
    assert str(find_hopeless(of)[0]) == "worse: ends 40 % worse than topk, and sends 2 times the bytes"
    assert {beaten.method for beaten in find_hopeless(of, worse=0.02)} == {"worse", "near"}
    assert {beaten.method for beaten in find_hopeless(of, more=1.0)} == {"worse", "little"}


def test_what_diverged_is_hopeless_however_little_it_sends() -> None:
    lost = msgspec.structs.replace(run("topk", [10.0, None], 0, 1), steps=1000)
    of = find_frontier([run("bf16", falls(2.0, 5), 0, 400), lost])["long", "digits_small", 1000]
    assert [str(beaten) for beaten in find_hopeless(of)] == ["topk: diverged"]


frontier_steps = frontier.steps_to


@pytest.mark.parametrize("defect", ["censored", "unspaced"])
def test_the_laws_catch_what_flatters(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if defect == "censored":
        monkeypatch.setattr(frontier, "steps_to", lambda row, goal: min(frontier_steps(row, goal), row.steps))
        with pytest.raises(AssertionError):
            test_what_ends_within_2_percent_counts_as_there_and_what_does_not_says_so()
    else:
        monkeypatch.setattr(frontier, "_bracket", lambda row, goal: (frontier_steps(row, goal),) * 2)
        with pytest.raises(AssertionError):
            test_steps_to_the_quality_of_bf16_are_a_multiple_of_its_own()


def real(method: str, end: float, sent: int) -> SurveyRow:
    """A run that may be in an archive."""
    from grace import method as make_method
    from grace.contract.knobs import as_call

    recipe = as_call(make_method(method))
    return run(method, falls(end, 5), 0, sent, recipe=recipe, protocol="screen")


def test_the_command_prints_it_and_what_is_hopeless(tmp_path: Path) -> None:
    archive = tmp_path / "a.parquet"
    write_archive(archive, [real("bf16", 2.0, 400), real("drive", 2.1, 40), real("onebit", 3.0, 90)])
    done = call("frontier", archive)
    assert done.exit_code == 0, done.output
    assert "hopeless: onebit: ends 45 % worse than drive, and sends 2.25 times the bytes" in done.stdout
    document = json.loads(call("frontier", archive, "--json").stdout)
    assert [of["method"] for of in document[0]["hopeless"]] == ["onebit"]
    assert document[0]["methods"]["drive"]["steps"]["how"] == "not reached"
    assert_one_line(call("frontier", archive, "--protocol", "wide"), "under protocol 'wide', on embedded data")
    write_archive(archive, [real("drive", 2.1, 40)])
    assert_one_line(
        call("frontier", archive),
        "no runs of bf16 to compare with, on embedded data and the processor; the protocols here",
    )


def test_an_archive_that_is_cut_or_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "a.parquet"
    write_archive(archive, [real("bf16", 2.0, 400)])
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    assert_one_line(call("frontier", archive), "a.parquet is no Parquet file")
    monkeypatch.setattr(archives, "VERSION", 9)
    write_archive(archive, [real("bf16", 2.0, 400)])
    monkeypatch.undo()
    assert_one_line(call("frontier", archive), "is an archive of grace.survey version 9; legal: 1")
