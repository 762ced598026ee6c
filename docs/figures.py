"""Draws what is drawn of the tables of docs/concepts/results.md: README's picture, light and dark, and a step of each model;
and of the survey's archive: quality on an LSTM against epochs and bytes.

Run by ``make figures``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grace
from grace_bench.report.archive import archive_document
from grace_bench.report.charts import MILLISECONDS, end_labels, reference_lines
from grace_bench.report.files import draw_report, sheet
from grace_bench.report.marks import MARK, STROKE, figure, layer, number
from grace_bench.report.render import save
from grace_bench.report.theme import LIMIT, TONES, config, sign
from grace_bench.survey.archive import read_archive
from grace_bench.survey.evidence import SEEDS
from grace_bench.survey.frontier import Frontier, find_frontier
from grace_bench.survey.row import SurveyRow

SURVEYED = (
    "none", "bf16", "topk", "randomk", "blockrandomk", "dgc", "signsgd", "efsignsgd", "onebit", "terngrad", "qsgd:bits=4",
    "natural", "powersgd",
)  # fmt: skip
DOCS = Path(__file__).resolve().parent
LONG = DOCS / "survey" / "long.parquet"
MOST_LOST = 60  # percent of bf16's quality
LINES = {"no-communication": "no communication", "ddp-fp32": "fp32", "ddp-bf16": "bf16"}
LINK, MODEL = "1 Gbit/s", "VGG16"
LINKS, MODELS = (LINK, "10 Gbit/s"), (MODEL, "LSTM", "ResNet-50")
NOTES = [  # short lines: a reader's font may be a fifth wider than the one that they were drawn with
    "four workers on two cores, batches of 2; medians and quartiles of one run each:",
    "differences below 15 % mean nothing",
]


def rows(text: str, link: str = LINK, model: str = MODEL) -> list[dict[str, Any]]:
    """The rows of a page's table whose first heading is this link: a method's step with this model, with its quartiles.

    Raises:
        ValueError: there is no such table, or no such column.
    """
    _, found_link, rest = text.partition(f"| {link} |")
    heading, *lines = rest.partition("\n\n")[0].splitlines() or [""]
    titles = [title.strip() for title in heading.split("|")]
    if not found_link or f"{model} ms" not in titles:
        raise ValueError(f"no table of {link} with a column {model} ms")
    out = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name, cell = cells[0].strip("`"), cells[1 + titles.index(f"{model} ms")]
        step, low, high = map(float, re.findall(r"[\d.]+", cell))
        out.append({"name": name, "step_ms": step, "step_ms_low": low, "step_ms_high": high, "line": LINES.get(name)})
    return out


def draw(
    panels: Mapping[str, Sequence[Mapping[str, Any]]],
    out: Path,
    name: str,
    title: str,
    tones: Sequence[str] = tuple(TONES),
) -> list[Path]:
    """Draws a panel of bars for each table: as ``name-light`` and ``name-dark``, or as ``name`` in one tone."""
    written: list[Path] = []
    lines = {"no communication": LIMIT, **{line: sign(k, baseline=True) for k, line in enumerate(("fp32", "bf16"))}}
    plot = {**step_bars(), "width": 560 if len(panels) == 1 else 330}
    for tone in tones:
        signs = {line: {**own.shape, **own.paint(tone)} for line, own in lines.items()}
        bar = TONES[tone]["accent"], TONES[tone]["quiet"]
        shown = [
            (head, plot, [{**row, **signs.get(row["line"], {}), "bar": bar[row["line"] is not None]} for row in table])
            for head, table in panels.items()
        ]
        drawing = sheet(config(tone), title, NOTES, shown, [])
        written += save(drawing, out, f"{name}-{tone}" if len(tones) > 1 else name)
    return written


def step_bars() -> dict[str, Any]:
    """Bars of the time of a step, one for each method, without their parts."""
    y = {"field": "name", "type": "nominal", "title": None, "sort": {"field": "step_ms", "op": "max"}}
    x = number("step_ms", "milliseconds of a step", zero=True)
    fill = {"fill": {"field": "bar", "type": "nominal", "scale": None}}
    description = f"datum.name + ': ' + {MILLISECONDS}"
    bar = layer("bar", {"y": y, "x": x, **fill}, name="parts", description=description, height={"band": 0.7})
    ends = {"x": {**x, "field": "step_ms_low"}, "x2": {"field": "step_ms_high"}, "y": y}
    spread = layer("rule", ends, {"filter": "isValid(datum.step_ms_low)"}, style="measured")
    says = "Bars of the milliseconds of a step, one for each method."
    return figure([bar, *reference_lines(x), spread, *end_labels(x, y)], says, {"step": 24})


def survey_rows() -> list[SurveyRow]:
    """The runs of the archive that are drawn: of those methods that the page has in its table of qualities."""
    names = {grace.spell(grace.method(name)) for name in SURVEYED}
    rows = read_archive(DOCS / "survey" / "archive.parquet")
    return [row for row in rows if (row.protocol, row.task) == ("quarter", "lstm_small") and row.method in names]


def draw_survey(out: Path) -> list[Path]:
    """Draws quality against epochs and bytes, and the last quality against bytes, as ``quality-`` and ``bytes-lstm-small``."""
    with tempfile.TemporaryDirectory() as folder:
        document = archive_document(survey_rows(), "archive.parquet")
        drawn = draw_report({**document, "links": [""]}, Path(folder))  # no link: nothing was timed
        written = []
        for path in (path for path in drawn if path.suffix == ".svg"):
            name = "quality" if "quality-epoch" in path.name else "bytes"
            written.append(out / f"{name}-lstm-small.svg")
            written[-1].write_bytes(path.read_bytes())
    return written


def frontier_rows(frontier: Frontier) -> list[dict[str, Any]]:
    """The rows of the frontier's figure: a method on a task, by the runs that have most methods there, with its bytes beside
    bf16's, and the share of bf16's quality that it lost, in percent. What lost more than the axis has is left out.
    """
    order = sorted(frontier, key=lambda task: (len(frontier[task]), task[2]))
    rows = []
    for task in {name: (protocol, name, steps) for protocol, name, steps in order}.values():
        for method, place in frontier[task].items():
            if 100 * place.loss <= MOST_LOST:
                row = {"task": f"{task[1]}, {task[2]:,} steps", "name": method, "share": place.share}
                rows.append({**row, "lost": 100 * place.loss, "front": place.on_frontier, "seeds": place.quality.seeds})
    return rows


def draw_frontier(rows: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Draws quality against bytes as ``frontier.svg``: a point for each method, and a task's frontier as a line."""
    tasks = sorted({row["task"] for row in rows})
    signs = {task: {**sign(k).shape, **sign(k).paint("light")} for k, task in enumerate(tasks)}
    shown = [{**row, **signs[row["task"]], "label": row["task"], "opacity": 1} for row in rows]
    x = number("share", "bytes of a worker and step, as a share of bf16's (log)", text="format(datum.value, '.3~%')")
    y = number("lost", "% of bf16's quality lost after as many steps, a lower point is better")
    y["scale"] = {"type": "symlog", "constant": 1, "nice": False, "padding": 12}
    y["axis"] = {"values": [-5, -2, -1, 0, 1, 2, 5, 10, 20, 50, 100]}
    line = layer(
        "line", {"x": x, "y": y, **STROKE, "detail": {"field": "task"}}, {"filter": "datum.front"}, strokeWidth=2
    )
    says = "datum.name + ' on ' + datum.task + ': ' + format(datum.lost, '.2f') + ' % lost'"
    point = layer("point", {"x": x, "y": y, **MARK}, description=says, size=40)
    text = {"x": x, "y": y, "text": {"field": "name"}}
    names = layer("text", text, {"filter": "datum.front"}, style="small", align="left", dx=6, dy=-6)
    goal = layer("rule", {"y": {"datum": 2}}, style="goal")
    plot = {
        **figure([line, point, names, goal], "Points of lost quality against bytes, one for each method.", 460),
        "width": 820,
    }
    seeds = sorted({row["seeds"] for row in rows})
    runs = f"{' or '.join(map(str, seeds))} seed{'s' if seeds != [1] else ''} of each" + (
        ": differences of some percent mean nothing" if seeds[0] < SEEDS else ""
    )
    notes = [
        f"{'; '.join(tasks)}: four workers, {runs}",
        f"lines: nothing that sends as little ends better; dashed: 2 %; not shown: what lost over {MOST_LOST} %",
    ]
    entries = [{**signs[task], "text": task} for task in tasks]
    drawing = sheet(config("light"), "The least that may be sent", notes, [("", plot, shown)], entries)
    return [path for path in save(drawing, out, "frontier") if path.suffix == ".svg" or path.unlink()]


def main() -> None:
    """Writes docs/images/readme-*.svg, step-time-*.svg, *-lstm-small.svg and frontier.svg."""
    draw_survey(DOCS / "images")
    if LONG.exists():
        draw_frontier(frontier_rows(find_frontier(read_archive(LONG))), DOCS / "images")
    page = (DOCS / "concepts" / "results.md").read_text(encoding="utf-8")
    images = DOCS / "images"
    drawn = draw({"": rows(page)}, images, "readme", f"A step of {MODEL} over {LINK}, by method")
    for model in MODELS:
        panels = {link: rows(page, link, model) for link in LINKS}
        name = f"step-time-{model.replace('-', '').lower()}"
        drawn += draw(panels, images, name, f"A step of {model}, by method", ["light"])
    for path in drawn:
        if path.suffix == ".png":
            path.unlink()


if __name__ == "__main__":
    main()
