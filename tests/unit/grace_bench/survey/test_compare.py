"""Methods beside each other at equal epochs, at equal bytes and in time; the findings of the survey, judged."""

from __future__ import annotations

import math

import msgspec
import pytest

from benchmarks.comparison import SHARE, Compared, compare, quality_after
from benchmarks.verdicts import CONFIRMED, OPEN, RANKING, REFUTED, SWAP_ODDS, judge, longest
from grace_bench.advise.steps import measure
from grace_bench.runs.results import DocumentError, encode
from grace_bench.survey.evidence import Quality
from grace_bench.survey.goals import steps_to
from grace_bench.survey.row import SurveyRow
from grace_bench.survey.steps import LINKS, StepTable, TaskSteps, read_steps
from tests.unit.grace_bench.survey.tiny import HERE

ROW = SurveyRow(
    protocol="survey", task="a", method="topk", recipe="topk", workers=2, seed=0, steps=100, steps_per_epoch=10, batch=4,
    optimizer="SGD", peak_lr=0.1, momentum=0.9, why=None, metric="accuracy", better="higher", final=0.8, best=0.8,
    diverged=None, at=[0, 50, 100], values=[0.1, 0.6, 0.8], sent=[0, 2000, 4000], parameters=100, rounds=100, data="a",
    digest="0" * 16, source="embedded", procedural=True, grace="1", torch="2", numpy="2", python="3", device="cpu",
    command="", cpu_seconds=1.0,
)  # fmt: skip


def row(**fields: object) -> SurveyRow:
    return msgspec.structs.replace(ROW, **fields)


def steps(busy: bool = False, **methods: tuple[float, float, float]) -> StepTable:
    """Milliseconds of each method over the links, on the tasks a and b."""
    milliseconds = {name: dict(zip(LINKS, ms, strict=True)) for name, ms in methods.items()}
    tasks = {task: TaskSteps(2, 4, 1.0, milliseconds) for task in ("a", "b")}
    return StepTable(created="2026-01-01", system="x", cores=2, grace="1", torch="2", busy=busy, tasks=tasks)


@pytest.mark.parametrize(
    ("budget", "value"), [(0, 0.1), (1000, 0.35), (2000, 0.6), (3000, 0.7), (4000, 0.8), (1e9, 0.8)]
)
def test_quality_after_bytes_is_on_a_line_between_evaluations(budget: float, value: float) -> None:
    assert quality_after(ROW, budget) == pytest.approx(value)


def test_quality_after_bytes_of_a_run_that_diverged() -> None:
    lost = row(values=[0.1, None], sent=[0, 2000], at=[0, 50], final=None, diverged=60)
    assert quality_after(lost, 1000) is None
    assert quality_after(lost, 3000) is None


@pytest.mark.parametrize(("goal", "at"), [(0.1, 0), (0.6, 50), (0.61, 100), (0.9, math.inf)])
def test_steps_to_a_quality(goal: float, at: float) -> None:
    assert steps_to(ROW, goal) == at
    low = row(better="lower", values=[-0.1, -0.6, -0.8])
    assert steps_to(low, -goal) == at


def test_equal_bytes_and_time_to_the_quality_of_bf16() -> None:
    rows = [row(seed=seed) for seed in range(3)]
    rows += [row(seed=seed, method="bf16", recipe="bf16", sent=[0, 20000, 40000]) for seed in range(3)]
    (of,) = compare(rows, steps(topk=(10, 5, 1), bf16=(80, 8, 1))).values()
    budget = SHARE * ROW.fp32_bytes
    assert budget == 8000
    assert of["topk"].bytes.median == 0.8, "it never sends so much"
    assert of["bf16"].bytes.median == pytest.approx(0.1 + 0.5 * 8000 / 20000)
    assert of["topk"].times["100 Mbit/s"].median == pytest.approx(1.0), "100 steps of 10 ms to within 2 % of 0.8"
    assert of["bf16"].times["100 Mbit/s"].median == pytest.approx(8.0)
    assert of["topk"].sent == pytest.approx(0.1)


def test_a_quality_that_is_not_reached_takes_for_ever() -> None:
    rows = [row(seed=seed) for seed in range(3)]
    rows += [row(seed=seed, method="bf16", recipe="bf16", final=0.9, values=[0.1, 0.6, 0.9]) for seed in range(3)]
    (of,) = compare(rows, steps(topk=(10, 5, 1), bf16=(80, 8, 1))).values()
    assert of["topk"].times["1 Gbit/s"].median == math.inf
    assert of["bf16"].times["1 Gbit/s"].beats(of["topk"].times["1 Gbit/s"])


def test_without_a_step_of_these_workers_there_is_no_time() -> None:
    assert steps(topk=(1, 1, 1)).seconds(ROW, "1 Gbit/s") == pytest.approx(0.001)
    assert steps(topk=(1, 1, 1)).seconds(row(workers=4), "1 Gbit/s") is None
    assert steps(topk=(1, 1, 1)).seconds(row(batch=5), "1 Gbit/s") is None
    assert steps(topk=(1, 1, 1)).seconds(row(method="dgc"), "1 Gbit/s") is None


# ---- verdicts -------------------------------------------------------------------------------------------------------
def quality(value: float, spread: float = 0.01) -> Quality:
    return Quality(3, value, value - spread, value + spread, 0.1, True)


def compared(
    value: float,
    sent: float = 0.1,
    ms: tuple[float, float, float] = (1, 1, 1),
    bytes_: float | None = None,
    spread: float = 0.01,
) -> Compared:
    of = msgspec.structs.replace(quality(value, spread), sent=sent)
    return Compared(of, quality(value if bytes_ is None else bytes_), {}, dict(zip(LINKS, ms, strict=True)))


def verdict_of(finding: str, a: dict[str, Compared], b: dict[str, Compared], *, timed: bool = True) -> str:
    comparison = {("survey", "a", 100): a, ("survey", "b", 100): b}
    return next(verdict.verdict for verdict in judge(comparison, timed=timed) if finding in verdict.finding)


HIGH, LOW, MIDDLE = compared(0.8), compared(0.5), compared(0.79)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ((HIGH, LOW), (HIGH, LOW), CONFIRMED),
        ((HIGH, LOW), (LOW, HIGH), REFUTED),
        ((HIGH, LOW), (HIGH, MIDDLE), OPEN),
        ((HIGH, LOW), (HIGH, None), OPEN),
        ((HIGH, LOW), (compared(0.8, spread=0.001), compared(0.79, spread=0.001)), OPEN),  # apart, by little
    ],
)
def test_error_feedback(a: tuple[Compared, ...], b: tuple[Compared | None, ...], verdict: str) -> None:
    names = ("topk", "topk:memory=none")
    of_b = {name: compared for name, compared in zip(names, b, strict=True) if compared is not None}
    assert verdict_of("lifts top-k", dict(zip(names, a, strict=True)), of_b) == verdict


def test_of_qsgd_nothing_can_be_said() -> None:
    pair = {"qsgd:bits=4": HIGH, "qsgd:bits=4,shrink=true,memory=residual": LOW}
    assert verdict_of("hurts QSGD", pair, pair) == OPEN


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ({"topk": HIGH, "dgc": LOW}, {"topk": HIGH, "dgc": LOW}, REFUTED),
        ({"topk": HIGH, "dgc": LOW}, {"topk": LOW, "dgc": HIGH}, CONFIRMED),
        ({"topk": HIGH, "dgc": MIDDLE}, {"topk": HIGH, "dgc": LOW}, OPEN),
        (
            {"topk": HIGH, "none": compared(0.9, sent=1)},
            {"topk": HIGH, "none": compared(0.9, sent=1)},
            OPEN,
        ),  # one that compresses
        # by bytes another is the best
        ({"topk": compared(0.8, bytes_=0.1), "dgc": LOW}, {"topk": compared(0.8, bytes_=0.1), "dgc": LOW}, REFUTED),
    ],
)
def test_winners(a: dict[str, Compared], b: dict[str, Compared], verdict: str) -> None:
    if len(a) == 2 and "none" in a:
        a, b = {**a, "dgc": MIDDLE}, {**b, "dgc": MIDDLE}
    assert verdict_of("No method wins", a, b) == verdict


def test_the_architecture_decides_where_more_change_places_than_by_chance() -> None:
    swap = {"topk": HIGH, "dgc": LOW}, {"topk": LOW, "dgc": HIGH}
    assert verdict_of("architecture", *swap) == CONFIRMED
    assert verdict_of("architecture", swap[0], swap[0]) == OPEN
    many = {f"m{k}": MIDDLE for k in range(40)}
    assert SWAP_ODDS / 2 < 40 * 39
    assert verdict_of("architecture", {**many, **swap[0]}, {**many, **swap[1]}) == OPEN


def times(**ms: float) -> dict[str, Compared]:
    """Methods by the milliseconds of a step over every link; the later compresses more."""
    return {
        name.replace("randomk", "randomk:scale=false"): compared(0.5, sent=1 / (1 + k), ms=(value, value, value))
        for k, (name, value) in enumerate(ms.items())
    }


BOTH = {"none": 100.0, "bf16": 90.0}


def test_times() -> None:
    with_ratio = times(**BOTH, **{f"m{k}": 80.0 - k for k in range(12)})
    against = times(**BOTH, **{f"m{k}": 60.0 + k for k in range(12)})
    assert verdict_of("do not go together", with_ratio, with_ratio) == REFUTED
    assert verdict_of("do not go together", against, against) == CONFIRMED
    assert verdict_of("do not go together", with_ratio, against) == OPEN
    slow = times(**BOTH, **{f"m{k}": 100.0 + k for k in range(12)})
    assert verdict_of("few methods pay", slow, slow) == CONFIRMED
    assert verdict_of("few methods pay", against, against) == REFUTED
    assert verdict_of("few methods pay", slow, against) == OPEN
    order = times(**BOTH, randomk=10, threshold=11, dgc=12, topk=13, powersgd=14)
    turned = times(**BOTH, randomk=14, threshold=13, dgc=12, topk=11, powersgd=10)
    close = times(**BOTH, randomk=10.5, threshold=10, dgc=12, topk=13, powersgd=14)
    assert {*RANKING} <= {*order}
    assert verdict_of("rank in this order", order, close) == CONFIRMED
    assert verdict_of("rank in this order", turned, turned) == REFUTED
    assert verdict_of("rank in this order", order, turned) == OPEN
    for finding in ("do not go together", "few methods pay", "rank in this order"):
        assert verdict_of(finding, order, order, timed=False) == OPEN


def test_of_several_lengths_the_longest_counts() -> None:
    tasks = [("tuned", "a", 10), ("quarter", "a", 5), ("survey", "a", 10), ("quarter", "b", 5)]
    assert longest(tasks) == [("quarter", "b", 5), ("survey", "a", 10)]


# ---- the table of steps ---------------------------------------------------------------------------------------------
def test_steps_are_measured_for_the_methods_of_each_task(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = [row(task=f"{HERE}:Tiny", method=name, recipe=name) for name in ("none", "topk", "fp16")]
    rows.append(row(task=f"{HERE}:Tiny", method="dgc", source="official"))
    told: list[str] = []
    table = measure(rows, told.append, samples=1)
    assert told == [f"{HERE}:Tiny: 3 methods"]
    (of,) = table.tasks.values()
    assert (of.workers, of.batch, sorted(of.methods)) == (2, 4, ["fp16", "none", "topk"])
    for over in of.methods.values():
        assert list(over) == list(LINKS)
        assert over["100 Mbit/s"] >= over["10 Gbit/s"] >= 0.9 * of.step_ms
    (tmp_path / "steps.json").write_text(encode(table))
    assert read_steps(tmp_path / "steps.json") == table
    assert read_steps(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{}", "legal: 'grace.survey.steps', version 1"),
        ('{"schema": "grace.survey.steps", "version": 2}', "version 2; legal"),
        ("no", "not JSON"),
        ('{"schema": "grace.survey.steps", "version": 1}', "is no table of steps: .*created"),
    ],
)
def test_what_is_no_table_of_steps(text: str, match: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "steps.json").write_text(text)
    with pytest.raises(DocumentError, match=match):
        read_steps(tmp_path / "steps.json")
