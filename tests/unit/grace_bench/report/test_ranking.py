"""Numbers within each other's ranges are not crowned, in no table of the terminal."""

from __future__ import annotations

import pytest
from rich.console import Console

from grace_bench.report import tables
from grace_bench.report.ranking import crowns, experiments
from grace_bench.runs.config import RunConfig
from tests.unit.grace_bench.documents import document


def runs(method, *finals, workers=2):
    return [
        document(RunConfig("digits", method, workers=workers, steps=10, seed=seed), final=final)
        for seed, final in enumerate(finals)
    ]


def find_crowned(*documents, measure="final"):
    groups, _ = experiments(documents)
    crowned = crowns(groups, measure)
    return [group.label for group in groups if id(group) in crowned]


def test_who_is_clearly_the_best_is_crowned():
    assert find_crowned(*runs("none", 0.90, 0.91), *runs("topk", 0.92, 0.93)) == ["topk"]
    assert find_crowned(*runs("none", 0.90, 0.92), *runs("topk", 0.92, 0.93)) == [], "their ranges touch"
    assert find_crowned(*runs("none", None, 0.91), *runs("topk", 0.92, 0.93)) == ["topk"]
    assert find_crowned(*runs("none", 0.90, 0.91), *runs("topk", None, 0.93)) == [], "one seed diverged"


def test_one_seed_says_nothing_of_another():
    assert find_crowned(*runs("none", 0.90), *runs("topk", 0.95)) == []
    assert find_crowned(*runs("none", 0.90, 0.91), *runs("topk", 0.95)) == []


def test_nobody_wins_alone_nor_what_exchanges_nothing():
    assert find_crowned(*runs("topk", 0.92, 0.93)) == []
    assert find_crowned(*runs("topk", 0.92, 0.93), *runs("no-communication", 0.98, 0.99)) == []


def test_places_have_their_own_winner():
    two = [*runs("none", 0.90, 0.91), *runs("topk", 0.92, 0.93)]
    four = [*runs("none", 0.95, 0.96, workers=4), *runs("topk", 0.92, 0.93, workers=4)]
    groups, _ = experiments([*two, *four])
    crowned = crowns(groups, "final")
    assert [(group.label, group.first.workers) for group in groups if id(group) in crowned] == [
        ("topk", 2),
        ("none", 4),
    ]


def test_experiments_keep_the_order_in_which_they_were_asked_for():
    groups, _ = experiments([*runs("topk", 0.9, 0.9), *runs("none", 0.9, 0.9), *runs("qsgd", 0.9)])
    assert [(group.label, len(group.runs)) for group in groups] == [("topk", 2), ("none", 2), ("qsgd", 1)]


@pytest.mark.parametrize("view", [tables.comparison, tables.sweep])
def test_tables_have_one_line_for_all_seeds_and_mark_the_best(view):
    console = Console(width=220)
    with console.capture() as capture:
        console.print(view([*runs("none", 0.90, 0.91, 0.905), *runs("topk", 0.92, 0.93, None)]))
        console.print(view([*runs("none", 0.90, 0.91), *runs("topk", 0.92, 0.93)]))
        console.print(view([*runs("none", 0.9), *runs("topk", 0.92)]))
    text = capture.get()
    assert "0.9050 (0.9000-0.9100)" in text
    assert "0.9200 (diverged-0.9300)" in text
    assert text.count("0.9250 (0.9200-0.9300)*") == 1
    assert text.count("--seeds 0,1,2") == 1, "where there is one seed only"
    assert "3.0 (2.0-4.0)" in text, "the quartiles of one run's steps"
    assert text.count("nobody is clearly the best") == 2


@pytest.mark.parametrize("view", [tables.comparison, tables.sweep])
def test_what_exchanges_nothing_has_no_quality_and_did_not_diverge(view):
    console = Console(width=220)
    with console.capture() as capture:
        console.print(view([*runs("no-communication", None), *runs("none", 0.9)]))
    assert "diverged" not in capture.get()
