"""The page of the survey's findings is what its archive says."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import pytest

import grace
from benchmarks.evidence import gather, to_json, to_known
from docs.survey import findings
from grace.auto import classes
from grace_bench.survey.archive import check_row, merge, read_archive
from grace_bench.survey.frontier import SCREEN, find_frontier, find_hopeless
from grace_bench.survey.plan import read_plan
from grace_bench.survey.row import SurveyRow
from grace_bench.survey.steps import LINKS, StepTable, TaskSteps, read_steps


@pytest.fixture(scope="module")
def rows() -> list[SurveyRow]:
    return read_archive(findings.ARCHIVE)


def test_the_page_is_what_the_archive_says(rows: list[SurveyRow]) -> None:
    assert findings.PAGE.read_text(encoding="utf-8") == findings.page(
        rows, read_plan(findings.PLAN), read_steps(findings.STEPS), findings.read_all()[0]
    )


def test_what_the_package_knows_is_what_the_archive_says(rows: list[SurveyRow]) -> None:
    every, sources = findings.read_all()
    assert {row.key for row in rows} <= {row.key for row in every}
    assert findings.EVIDENCE.read_text(encoding="utf-8") == to_json(every), "python -m docs.survey.findings writes it"
    assert classes.PATH.read_text(encoding="utf-8") == to_known(every, sources), (
        "python -m docs.survey.findings writes it"
    )


def test_with_the_steps_of_an_idle_machine_the_page_has_times(rows: list[SurveyRow]) -> None:
    some = [row for row in rows if row.task == "ncf_small"]
    ms = dict.fromkeys(LINKS, 10.0)
    task = TaskSteps(4, some[0].batch, 9.0, {row.method: ms for row in some})
    table = StepTable(
        created="2026-01-02T03:04", system="x", cores=2, grace="1", torch="2", busy=False, tasks={"ncf_small": task}
    )
    text = findings.page(some, [], table)
    assert "measured on 2026-01-02 on an idle machine" in text
    assert "to bf16's quality, 100 Mbit/s" in text
    line = next(line for line in text.splitlines() if line.startswith("| `bf16` |"))
    assert re.search(r"\| [\d.]+ s \(", line), line
    assert "not reached |" in text
    busy = msgspec.structs.replace(table, busy=True)
    assert "did other work" in findings.page(some, [], busy)
    assert "to bf16's quality, 100 Mbit/s" not in findings.page(some, [], busy)


def test_the_archive_holds_sound_runs_each_once(rows: list[SurveyRow]) -> None:
    assert len(merge(rows)) == len(rows)
    for row in rows:
        check_row(row)
    assert findings.ARCHIVE.stat().st_size < 5e6


def runs(row: SurveyRow, task: str, **finals: tuple[float, ...]) -> list[SurveyRow]:
    """Rows of a task where higher is better, a method's seeds ending with these values, that send few bytes."""
    names = {"topk": "topk", "bare": "topk:memory=none"}
    return [
        msgspec.structs.replace(
            row,
            task=task,
            method=names[name],
            recipe=name,
            seed=seed,
            final=value,
            better="higher",
            source="embedded",
            parameters=10_000,
            sent=[100 * at for at in row.at],
        )
        for name, values in finals.items()
        for seed, value in enumerate(values)
    ]


HIGH, LOW = (0.8, 0.82, 0.84), (0.5, 0.52, 0.54)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ({"topk": HIGH, "bare": LOW}, {"topk": HIGH, "bare": LOW}, "confirmed"),
        ({"topk": HIGH, "bare": LOW}, {"topk": LOW, "bare": HIGH}, "refuted"),
        ({"topk": HIGH, "bare": LOW}, {"topk": HIGH, "bare": (0.5, 0.52, 0.8)}, "not decidable here"),
        ({"topk": HIGH, "bare": LOW}, {"topk": HIGH[:2], "bare": LOW[:2]}, "not decidable here"),
        ({"topk": HIGH, "bare": LOW}, {"topk": HIGH, "bare": LOW[:2]}, "not decidable here"),
    ],
)
def test_a_finding_takes_two_tasks_and_intervals_that_do_not_touch(
    a: dict[str, tuple[float, ...]],
    b: dict[str, tuple[float, ...]],
    verdict: str,
    rows: list[SurveyRow],
) -> None:
    verdicts = findings.judge([*runs(rows[0], "a", **a), *runs(rows[0], "b", **b)])
    assert verdicts[0].verdict == verdict


def test_rows_of_official_data_and_of_gpus_are_not_mixed_in(rows: list[SurveyRow]) -> None:
    other = [msgspec.structs.replace(rows[0], source="official"), msgspec.structs.replace(rows[0], device="H200")]
    assert gather([*rows, *other]) == gather(rows)


def test_places_that_change_and_winners(rows: list[SurveyRow]) -> None:
    changed = [*runs(rows[0], "a", topk=HIGH, bare=LOW), *runs(rows[0], "b", topk=LOW, bare=HIGH)]
    same = [*runs(rows[0], "a", topk=HIGH, bare=LOW), *runs(rows[0], "b", topk=HIGH, bare=LOW)]
    assert [verdict.verdict for verdict in findings.judge(changed)[4:6]] == ["confirmed", "confirmed"]
    assert [verdict.verdict for verdict in findings.judge(same)[4:6]] == ["refuted", "not decidable here"]


def test_verdicts_that_long_runs_overturn_are_said(rows: list[SurveyRow]) -> None:
    short = [row for task in ("a", "b") for row in with_plain(rows[0], task, 100, topk=LOW)]
    long = [row for task in ("c", "d") for row in with_plain(rows[0], task, 5000, topk=HIGH)]
    (line,) = findings.overturned(short, [*short, *long])
    assert line == (
        "- `topk`: `less` by the shorter runs, as on a after 100 steps; `keeps` by those of 5,000 steps, as on c."
    )
    assert findings.overturned(short, [*short, *long[:6]]) == [], "one task is not enough"


def with_plain(row: SurveyRow, task: str, steps: int, **finals: tuple[float, ...]) -> list[SurveyRow]:
    """Rows of a task, with those of uncompressed training."""
    plain = [msgspec.structs.replace(each, method="none") for each in runs(row, task, topk=HIGH)]
    return [msgspec.structs.replace(each, steps=steps, why=None) for each in (*plain, *runs(row, task, **finals))]


def test_divergence_is_the_worst_there_is(rows: list[SurveyRow]) -> None:
    changed_runs = runs(rows[0], "a", topk=HIGH, bare=LOW)
    lost = [msgspec.structs.replace(row, final=None) if row.recipe == "bare" else row for row in changed_runs]
    (of,) = gather(lost).values()
    assert of["topk"].beats(of["topk:memory=none"])


def test_the_long_plan_has_no_long_runs_of_what_its_screen_calls_hopeless() -> None:
    screened = [row for row in read_archive(findings.LONG) if row.protocol == SCREEN]
    hopeless = {beaten.method for places in find_frontier(screened).values() for beaten in find_hopeless(places)}
    assert hopeless
    plan = read_plan(findings.LONG.with_suffix(".toml"))
    long = {grace.spell(grace.method(run.config.method)) for run in plan if run.protocol == "long"}
    assert not long & hopeless
    ends = Counter((*row.values, *row.sent) for row in screened if row.method in long)
    assert max(ends.values()) == 1, "two that are the same run"
