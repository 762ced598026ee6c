"""``grace bench predict``: seeds together, ranked, the winner and the break-even."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from grace.predict.links import link
from grace_bench.report import tables
from grace_bench.report.predictions import predict
from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import failure_of
from grace_bench.runs.results import CollectiveTerms, Prediction, Quartiles, Terms, encode
from tests.unit.grace_bench.documents import document


def run(method, megabytes, codec_ms=0.0, seed=0, *, compute_ms=10.0, quartiles=(1.0, 1.0)):
    """A run of two workers over 1gbit whose one all-reduce fills the line, as the link model sees it."""
    size = 1e6 * megabytes
    told = CollectiveTerms(1.0, size, 0.0, 0.0, [4, int(size)], [0.0, 8.37 * megabytes], 0.0)
    kinds = {"AllReduce": told} if megabytes else {}
    terms = Terms(compute_ms, compute_ms, codec_ms, 0.0, 0.0, 2.0, 1, [1.0], [1.0], kinds)
    config = RunConfig("digits", method, workers=2, link="1gbit", seed=seed)
    made = document(config, prediction=Prediction(1.0, 0.0, terms))
    low, high = quartiles
    return msgspec.structs.replace(
        made, time=msgspec.structs.replace(made.time, step_ms=Quartiles(10.0, 10.0 * low, 10.0 * high))
    )


def only(documents, at="1gbit", workers=2):
    (table,) = predict(documents, [link(at)], [workers], 4.0).tables
    return table


def test_seeds_are_one_row_with_a_median_and_a_range():
    table = only([run("none", 1), *(run("topk", 0.01, seed=seed, compute_ms=9.0 + seed) for seed in range(3))])
    assert [(row.rank, row.method, row.seeds) for row in table.rows] == [(1, "topk", 3), (2, "none", 1)]
    (low, median, high) = (getattr(table.rows[0].step_ms, name) for name in ("low", "median", "high"))
    assert (low, median, high) == pytest.approx((9.1, 10.1, 11.1), abs=0.1)
    assert table.winner == "topk"
    assert table.dense == "none"
    assert table.verdict.startswith("topk wins: 10.1 ms, 1.8")


def test_one_run_has_the_range_of_its_steps():
    row = only([run("none", 1, quartiles=(0.9, 1.2)), run("topk", 0.01)]).rows[1]
    assert row.step_ms.low / row.step_ms.median == pytest.approx(0.9)
    assert row.step_ms.high / row.step_ms.median == pytest.approx(1.2)


def test_what_lies_within_each_others_ranges_does_not_win():
    near = [
        run(name, 0.01, seed=seed, compute_ms=10 + seed + at / 2)
        for at, name in enumerate(("topk", "qsgd"))
        for seed in (0, 1)
    ]
    table = only([run("none", 1), *near])
    assert table.winner is None
    assert table.ahead == ["topk", "qsgd"]
    assert table.verdict == "no clear winner: the ranges of topk, qsgd touch"


def test_the_break_even_is_where_codec_and_bytes_balance():
    # 1 MB by a ring of two: 1 MB on the line, 8.37 ms at 1 Gbit/s; saving 0.9 of it costs 2 ms
    table = only([run("none", 1), run("topk", 0.1, codec_ms=2.0), run("no-communication", 0)])
    broken = {row.method: row.break_even_bits_per_second for row in table.rows}
    assert broken["none"] is None
    assert broken["no-communication"] is None
    assert broken["topk"] == pytest.approx(1e9 * 0.9 * 8.37 / 2, rel=0.05)
    assert [row.rank for row in table.rows] == [1, 2, None], "what exchanges nothing is a limit, not a rival"
    assert only([run("none", 1), run("topk", 0.1, codec_ms=2.0)], at="10gbit").winner == "none"


def test_without_a_dense_run_there_is_no_break_even():
    table = only([run("topk", 0.1), run("qsgd", 0.2)])
    assert table.dense is None
    assert {row.over_dense for row in table.rows} == {row.break_even_bits_per_second for row in table.rows} == {None}


def test_what_cannot_be_predicted_is_named():
    failed = failure_of(RunConfig("digits", "randomk"), "", [])
    predicted = predict([run("none", 1), failed, document(RunConfig("digits", "qsgd"))], [link("1gbit")], [2, 4], 4.0)
    assert predicted.left_out == ["qsgd", "randomk"]
    assert [table.workers for table in predicted.tables] == [2, 4]
    assert predicted.tables[0].verdict == "only none was measured: nothing to rank"


def test_the_table_and_the_document():
    predicted = predict([run("none", 1), run("topk", 0.01)], [link("1gbit")], [2], 4.0)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(tables.predictions(predicted))
    text = capture.get()
    assert "digits: 2 workers, 1gbit (measured with 2 workers, link 1gbit)" in text
    assert "topk wins: 10.1 ms" in text
    assert "10.1*" in text
    assert msgspec.json.decode(encode(predicted))["tables"][0]["rows"][0]["rank"] == 1
