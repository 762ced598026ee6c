import importlib.util
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
figures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(figures)
PAGE = (ROOT / "docs" / "concepts" / "results.md").read_text()


def test_the_picture_is_that_of_the_table():
    rows = {row["name"]: row for row in figures.rows(PAGE)}
    assert rows["ddp-fp32"] == {
        "name": "ddp-fp32", "step_ms": 934, "step_ms_low": 906, "step_ms_high": 960, "line": "fp32",
    }  # fmt: skip
    assert rows["randomk:ratio=0.01"]["step_ms"] == 184
    assert len(rows) == 16
    for tone in ("light", "dark"):
        drawn = (ROOT / "docs" / "images" / f"readme-{tone}.svg").read_text()
        for row in rows.values():
            assert f'aria-label="{row["name"]}: {row["step_ms"]:g} ms"' in drawn


@pytest.mark.parametrize("model", figures.MODELS)
def test_the_drawing_of_each_model_is_that_of_both_tables(model):
    drawn = (ROOT / "docs" / "images" / f"step-time-{model.replace('-', '').lower()}.svg").read_text()
    for link in figures.LINKS:
        for row in figures.rows(PAGE, link, model):
            assert f'aria-label="{row["name"]}: {row["step_ms"]:,.0f} ms"' in drawn


def test_a_page_without_the_table_is_an_error():
    with pytest.raises(ValueError, match="no table of 1 Gbit/s with a column VGG16 ms"):
        figures.rows("| 10 Gbit/s | VGG16 ms |")


def test_the_qualities_are_those_of_the_archive():
    rows, drawn = figures.survey_rows(), {}
    for name in ("quality", "bytes"):
        drawn[name] = (ROOT / "docs" / "images" / f"{name}-lstm-small.svg").read_text()
    assert len({row.method for row in rows}) == len(figures.SURVEYED)
    for method in {row.method for row in rows}:
        end = statistics.median(row.final for row in rows if row.method == method)
        shown = float(f"{end:.4g}")
        assert f'aria-label="{method} ends at {shown:g}"' in drawn["quality"]
        assert f"{method}" in drawn["bytes"]


def test_the_frontier_is_that_of_the_long_archive():
    rows = figures.frontier_rows(figures.find_frontier(figures.read_archive(figures.LONG)))
    drawn = (ROOT / "docs" / "images" / "frontier.svg").read_text()
    assert rows
    for row in rows:
        assert f'aria-label="{row["name"]} on {row["task"]}: {row["lost"]:.2f} % lost"'.replace(
            "-0.00", "0.00"
        ) in drawn.replace("\u2212", "-").replace("-0.00", "0.00").replace("&gt;", ">")
    if min(row["seeds"] for row in rows) < figures.SEEDS:
        assert "differences of some percent mean nothing" in drawn, "few seeds are told"
