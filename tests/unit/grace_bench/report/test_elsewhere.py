from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from grace_bench.report.elsewhere import elsewhere, step_seconds
from grace_bench.results import Quartiles, Result
from tests.unit.grace_bench.report.samples import run, run_of


def result(method: str, **changes: object) -> Result:
    document = run_of(run(method, **changes)).document
    assert isinstance(document, Result)
    return document


def test_a_slow_line_adds_what_the_bytes_take() -> None:
    one = result("topk:ratio=0.01")
    line = 8 * one.traffic.sent_bytes_per_step / 1e8
    assert step_seconds(one, 1e8) == pytest.approx(one.time.step_ms.median / 1000 + line)


def test_each_method_is_held_against_none() -> None:
    console = Console(width=160, record=True)
    view = elsewhere([result("none"), result("topk:ratio=0.01"), result("bf16")])
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
    console.print(elsewhere([result("none"), slow, worse]))
    text = console.export_text()
    assert "Fastest of those that end within 2 % of none's accuracy: at 100 Mbit/s topk:ratio=0.01, " in text
    assert "at 10 Gbit/s compression gains less than a tenth: take none." in text


@pytest.mark.parametrize("documents", [[], [("topk:ratio=0.01", "none")], [("none", "1gbit"), ("bf16", "1gbit")]])
def test_without_something_to_compare_with_there_is_no_table(documents: list[tuple[str, str]]) -> None:
    assert elsewhere([result(method, link=link) for method, link in documents]) is None
