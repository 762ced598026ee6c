from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from grace.predict.links import link
from grace_bench.report.slower_links import over_slower_links, step_seconds
from grace_bench.runs.forecast import forecast
from grace_bench.runs.results import CollectiveTerms, Prediction, Quartiles, Result, Terms
from tests.unit.grace_bench.report.samples import run, run_of


def result(method: str, **changes: object) -> Result:
    document = run_of(run(method, **changes)).document
    assert isinstance(document, Result)
    return document


def with_terms(run: Result) -> Result:
    """As a run that has measured its network."""
    told = CollectiveTerms(1.0, 1e6, 0.0, 0.0, [4, 1_000_000], [0.1, 1.0], 0.1)
    terms = Terms(10.0, 10.0, 0.0, 0.0, 0.0, 0.5, 1, [0.9], [1.0], {"AllReduce": told})
    return msgspec.structs.replace(run, prediction=Prediction(20.0, 0.0, terms))


def test_a_slow_line_adds_at_most_what_the_bytes_take_where_no_network_was_measured() -> None:
    run = result("topk:ratio=0.01")
    line = run.traffic.sent_bytes_per_step * link("100mbit").seconds_per_byte
    assert step_seconds(run, link("100mbit")) == pytest.approx(run.time.step_ms.median / 1000 + line)
    assert step_seconds(run, None) == run.time.step_ms.median / 1000


def test_where_it_was_measured_the_link_model_says_it_as_grace_bench_predict_does() -> None:
    run, there = with_terms(result("none")), link("100mbit")
    seconds = forecast(run)
    assert seconds is not None
    assert step_seconds(run, there) == seconds(there, run.workers) != step_seconds(run, there, modeled=False)
    console = Console(width=200, record=True)
    console.print(over_slower_links([run, with_terms(result("bf16"))]))
    assert "by the link model" in console.export_text()
    console.print(over_slower_links([run, result("bf16")]))  # a bound is not compared with a prediction
    assert "the measured step, and after it the time" in console.export_text()


def test_each_method_is_held_against_none() -> None:
    console = Console(width=160, record=True)
    view = over_slower_links([result("none"), result("topk:ratio=0.01"), result("bf16")])
    assert view is not None
    console.print(view)
    lines = console.export_text().splitlines()
    none, topk = (next(line for line in lines if line.startswith(name)) for name in ("none", "topk"))
    assert none.count("(1.0x)") == 3
    assert "100 %" in none
    assert "(1.0x)" not in topk.split(")")[0]


def test_the_fastest_over_each_link_is_named_and_none_where_nothing_gains() -> None:
    console = Console(width=400, record=True)
    slow = result("topk:ratio=0.01")
    slow = msgspec.structs.replace(slow, time=msgspec.structs.replace(slow.time, step_ms=Quartiles(60.0, 60.0, 60.0)))
    worse = msgspec.structs.replace(slow, method="randomk", final=0.5, steps=1)  # the fastest of all
    console.print(over_slower_links([result("none"), slow, worse]))
    text = console.export_text()
    assert "Fastest of those that end within 2 % of none's accuracy: at 100 Mbit/s topk:ratio=0.01, " in text
    assert "at 10 Gbit/s compression gains less than a tenth: take none." in text


@pytest.mark.parametrize("documents", [[], [("topk:ratio=0.01", "none")], [("none", "1gbit"), ("bf16", "1gbit")]])
def test_without_something_to_compare_with_there_is_no_table(documents: list[tuple[str, str]]) -> None:
    assert over_slower_links([result(method, link=link) for method, link in documents]) is None
