from __future__ import annotations

import pytest
from rich.console import Console

from grace_bench.report.elsewhere import elsewhere, predict_seconds
from grace_bench.results import Result
from tests.unit.grace_bench.report.samples import run, run_of


def result(method: str, **changes: object) -> Result:
    document = run_of(run(method, **changes)).document
    assert isinstance(document, Result)
    return document


def test_a_slow_line_adds_what_the_bytes_take() -> None:
    one = result("topk:ratio=0.01")
    line = one.steps * 8 * one.traffic.sent_bytes_per_step / 1e8
    assert predict_seconds(one, 1e8) == pytest.approx(one.steps * one.time.step_ms.median / 1000 + line)


def test_each_method_is_held_against_none() -> None:
    console = Console(width=120, record=True)
    view = elsewhere([result("none"), result("topk:ratio=0.01"), result("bf16")])
    assert view is not None
    console.print(view)
    lines = console.export_text().splitlines()
    none, topk = (next(line for line in lines if line.startswith(name)) for name in ("none", "topk"))
    assert none.count("(1.00x)") == 3
    assert "(1.00x)" not in topk.split(")")[0]


@pytest.mark.parametrize("documents", [[], [("topk:ratio=0.01", "none")], [("none", "1gbit"), ("bf16", "1gbit")]])
def test_without_something_to_compare_with_there_is_no_table(documents: list[tuple[str, str]]) -> None:
    assert elsewhere([result(method, link=link) for method, link in documents]) is None
