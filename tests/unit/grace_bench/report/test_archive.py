"""The page of the survey's archive."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grace_bench.report import archive
from grace_bench.report.archive import FIGURE, archive_document, write_page
from grace_bench.survey.steps import LINKS
from tests.unit.grace_bench.survey.test_compare import row, steps

TIMED = ["quality-epoch-time", "quality-throughput", "step-time", "links"]


def document(*rows: Any, **more: Any) -> dict[str, Any]:
    return archive_document(rows, "a.parquet", **more)


ROWS = [row(method=name, recipe=name, seed=seed) for name in ("none", "bf16", "topk") for seed in (0, 1)]


def test_without_a_table_of_steps_there_are_no_times() -> None:
    for table in (None, steps(busy=True, none=(9, 9, 9))):
        made = document(*ROWS, steps=table)
        assert [figure["name"] for figure in made["figures"]] == [FIGURE["name"], "quality-bytes"]
        assert "ms" not in json.dumps(
            [{key: value for key, value in group.items() if value is not None} for group in made["groups"]]
        )
        assert [figure["command"].split(" --out")[0] for figure in made["missing"]] == [
            "grace survey steps a.parquet"
        ] * 4
        (task,) = made["tasks"]
        assert task["target"] is None
        assert len(task["charts"][FIGURE["name"]]) == 2
        group = next(group for group in made["groups"] if group["label"] == "topk")
        assert group["curve"]["sent"] == [0, 2000, 4000]
        assert group["curve"]["seconds"] == [None] * 3
        assert (group["seeds"], group["steps"], group["final"], group["relative"]) == (2, 100, 0.8, 0.1)
        assert not {"throughput", "step_ms"} & {*group}
        json.dumps(made, allow_nan=False)


def test_with_steps_there_are_links_and_a_time_to_the_quality_of_bf16() -> None:
    made = document(*ROWS, steps=steps(none=(90, 20, 5), bf16=(50, 11, 4), topk=(10, 6, 3)))
    assert made["links"] == list(LINKS.values())
    assert [figure["name"] for figure in made["figures"]] == [FIGURE["name"], "quality-bytes", *TIMED]
    assert made["missing"] == []
    group = next(group for group in made["groups"] if group["label"] == "topk" and group["link"] == 0)
    assert (group["step_ms"], group["target_seconds"]) == (10, 1.0)
    assert group["curve"]["seconds"] == [0, 0.5, 1.0]
    assert made["tasks"][0]["target"] == pytest.approx(0.98 * 0.8)
    assert group["compute_ms"] + group["exposed_ms"] == group["step_ms"], "the parts of a step add up to it"
    assert (made["runs"], made["measured"]) == (6, 6), "not three times as many for three links"


def test_what_the_table_of_steps_does_not_know_has_no_times() -> None:
    made = document(*ROWS, steps=steps(none=(90, 20, 5), bf16=(50, 11, 4)))
    unknown = [group for group in made["groups"] if group["label"] == "topk"]
    assert [group["link"] for group in unknown] == [0, 1, 2]
    for group in unknown:
        assert group["figures"] == [FIGURE["name"], "quality-bytes"]
        assert group["final"] == 0.8
        assert not {"throughput", "step_ms", "compute_ms", "exposed_ms", "target_seconds"} & {*group}


def test_what_is_not_alike_is_not_mixed() -> None:
    others = [
        row(source="official", digest="f" * 16), row(device="NVIDIA H100"), row(protocol="tuned"), row(protocol="tuned-trial"),
    ]  # fmt: skip
    made = document(row(), *others)
    assert [task["name"] for task in made["tasks"]] == [
        "a: survey",
        "a: survey, NVIDIA H100",
        "a: survey, official",
        "a: tuned",
    ]
    assert [group["seeds"] for group in made["groups"]] == [1] * 4, "trials measure no method"


def test_a_run_that_diverged_has_no_quality() -> None:
    lost = row(values=[0.1, None], at=[0, 50], sent=[0, 2000], final=None, diverged=60)
    (group,) = document(lost)["groups"]
    assert group["final"] is None
    assert group["measured"]


def test_the_page_is_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace_bench.report.write.runtime", lambda: "vega")
    size = write_page(ROWS, "a.parquet", tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert size == len(text.encode())
    assert '"quality-epoch-bytes": (rows)' in text, "the page's script knows the figure"
    assert archive.FIGURE["title"] in text
