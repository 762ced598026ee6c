"""Evidence of runs on a method's quality."""

from __future__ import annotations

import math

import pytest

from grace_bench.survey.evidence import Quality, Table, evidence_for, judge

PLAIN = Quality(3, 0.80, 0.79, 0.81, 1.0, True)
SAME = Quality(3, 0.79, 0.78, 0.80, 0.1, True)
WORSE = Quality(3, 0.60, 0.59, 0.61, 0.1, True)
FEW = Quality(1, 0.60, None, None, 0.1, True)
LOST = Quality(3, -math.inf, -math.inf, -math.inf, float("nan"), True)
CLOSE = Quality(3, 0.785, 0.784, 0.786, 0.1, True)  # clearly worse, by less than 2 %


def table(*qualities: tuple[str, int, Quality]) -> Table:
    return {("survey", task, steps): {"none": PLAIN, "topk": quality} for task, steps, quality in qualities}


@pytest.mark.parametrize(
    ("qualities", "verdict", "worst"),
    [
        ([("a", 100, SAME), ("b", 100, SAME)], "keeps", "a"),
        ([("a", 100, CLOSE), ("b", 100, SAME)], "keeps", "a"),
        ([("a", 100, SAME)], "unsure", "a"),
        ([("a", 100, SAME), ("b", 100, FEW)], "unsure", "a"),
        ([("a", 100, FEW), ("b", 100, FEW)], "unsure", "a"),
        ([("a", 100, SAME), ("b", 100, WORSE)], "less", "b"),
        ([("a", 100, WORSE)], "less", "a"),
        ([("a", 100, WORSE), ("b", 100, LOST)], "less", "b"),
        ([("a", 100, WORSE), ("a", 400, SAME), ("b", 100, SAME)], "keeps", "a"),  # the longer run counts
        ([("a", 100, SAME), ("a", 400, WORSE), ("b", 100, SAME)], "less", "a"),
        ([("a", 100, SAME), ("a", 400, FEW), ("b", 100, SAME)], "keeps", "a"),  # of too few seeds
    ],
)
def test_the_rule(qualities: list[tuple[str, int, Quality]], verdict: str, worst: str) -> None:
    rows = table(*qualities)
    evidence = judge("topk", rows, dict.fromkeys(rows, "accuracy"))
    assert evidence is not None
    assert (evidence.verdict, evidence.task) == (verdict, worst)
    assert evidence.runs == sum(quality.seeds for *_, quality in qualities)
    assert evidence.tasks == len({task for task, *_ in qualities})


def test_a_run_that_diverged_has_no_value() -> None:
    rows = table(("a", 100, LOST))
    evidence = judge("topk", rows, dict.fromkeys(rows, "accuracy"))
    assert evidence is not None
    assert (evidence.value, evidence.fp32) == (None, 0.80)


def test_lower_may_be_better() -> None:
    low = {"none": Quality(3, 10, 9.9, 10.1, 1, False), "topk": Quality(3, 12, 11.9, 12.1, 1, False)}
    evidence = judge("topk", {("survey", "a", 1): low}, {("survey", "a", 1): "perplexity"})
    assert evidence is not None
    assert evidence.verdict == "less"


def test_nothing_is_known_without_runs_of_both() -> None:
    assert judge("dgc", table(("a", 100, SAME)), {}) is None
    assert judge("topk", {("survey", "a", 100): {"topk": SAME}}, {}) is None


def test_the_package_knows_what_the_archive_says_of_exactly_that_method() -> None:
    plain = evidence_for("none")
    assert plain is not None
    assert plain.verdict == "keeps"
    assert evidence_for("topk") == evidence_for("topk:ratio=0.01")
    assert evidence_for("topk:ratio=0.03") is None
    assert evidence_for("no such method") is None
