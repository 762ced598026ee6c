"""The report's figures as files: for each task one SVG and one PNG of each, with a panel for every network."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grace_bench.report import charts
from grace_bench.report.contents import describe_machine, page_document, report_of
from grace_bench.report.direct_labels import with_names
from grace_bench.report.groups import result_of
from grace_bench.report.marks import LINE, MARK, Spec, quality_text
from grace_bench.report.read import LoadedRuns, Run
from grace_bench.report.render import save
from grace_bench.report.slower_links import BOUND, MODELED, are_modeled, links_of, step_seconds
from grace_bench.report.theme import config, titled
from grace_bench.runs.results import Result
from grace_command.text import plural, share

_WIDTH, _HEIGHT = 330, 290  # pixels of a panel
_POINTS = ("quality-throughput", "quality-bytes", "prediction")  # where not every name has room: there is a legend too
_ONE_PANEL = {"links": 620, "prediction": 520}  # of all networks
_TITLES = {
    "quality-epoch-time": "quality against epochs and against time",
    "quality-epoch-bytes": "quality against epochs and against bytes",
    "quality-throughput": "quality at the last evaluation against throughput",
    "quality-bytes": "quality at the last evaluation against bytes sent",
    "step-time": "where the time of a step goes",
    "links": "transports and links",
    "prediction": "what the link model predicts",
}
Row = dict[str, Any]


def draw_report(document: Mapping[str, Any], out: Path) -> list[Path]:
    """Writes the figures of a page's document into ``out``: ``<task>-<figure>.svg`` and ``.png``, and ``codec-latency``.

    Raises:
        MissingExtraError: vl-convert is not installed.
        OSError: a file cannot be written.
    """
    written: list[Path] = []
    look = document["config"]["light"]
    names = [figure["name"] for figure in document["figures"]]
    for index, task in enumerate(document["tasks"]):
        rows = [_show(row, document) for row in document["groups"] if row["task"] == index]
        for name, plots in task["charts"].items():
            shown = [row for row in rows if name in row["figures"]]
            if name in names and shown and (name != "links" or len({row["link"] for row in rows}) > 1):
                title, panels = f"{task['name']}: {_TITLES[name]}", _panels(name, plots, shown)
                entries = _entries(shown, document) if name in _POINTS else []
                columns = len(plots) if len(plots) > 1 else 4
                figure = sheet(look, title, _notes(name, shown, task), panels, entries, columns=columns)
                written += save(figure, out, f"{task['name']}-{name}")
    if "codec-latency" in names:
        written += draw_codecs(document["codecs"], out, "codec-latency")
    return written


def draw_comparison(results: Sequence[Result], out: Path) -> list[Path]:
    """Writes ``comparison.svg`` and ``.png`` into ``out``: what the same quality costs in epochs, in bytes and in time.

    Args:
        results: of one task on one network, one for each method.
        out: a directory.

    Returns:
        What was written; nothing, where no run measured a quality.
    """
    if not any(result.measured for result in results):
        return []
    report = report_of(LoadedRuns([Run(result.method, result) for result in results]))
    document = page_document(report, str(out))
    (task,) = document["tasks"]
    rows = [_show(row, document) for row in document["groups"]]
    over, modeled = links_of(report.groups), are_modeled(report.groups)
    for row, group in zip(rows, report.groups, strict=True):
        row["curve"]["sent"] = [(row["sent"] or 0) * step for step in group.curve.step]
        for link, there in over.items():
            second = statistics.median(step_seconds(result_of(run), there, modeled=modeled) for run in group.runs)
            row["curve"][link] = [second * step for step in group.curve.step]
        final = quality_text(row["final"], task) if row["final"] is not None else "diverged" if row["measured"] else "-"
        row["name"] = row["label"] + "*" * bool(row["adjusted"])
        row["text"] = f"{row['name']}\n{final}, {share(row['relative'])} of the bytes"
    worst = -math.inf if task["higher"] else math.inf
    rows.sort(key=lambda row: worst if row["final"] is None else row["final"], reverse=task["higher"])
    first = report.groups[0].first
    most = max(group.seeds for group in report.groups)
    chance = f"seed {first.seed}, one run each: differences of a point or so are chance"
    seeds = chance if most == 1 else f"medians over {most} seeds"
    notes = [
        f"{plural(first.workers, 'worker')}, {first.transport}, {describe_machine(first)}; {first.steps} steps; {seeds}; "
        f"{'higher' if task['higher'] else 'lower'} is better."
    ]  # fmt: skip
    if any(row["adjusted"] for row in rows):
        notes.append("* learning rate or momentum is not the task's own; the results say why")
    if over:
        notes.append(f"Over a link: {MODELED if modeled else BOUND}.")
    # no names beside the ends, which would lie on lines that cross: the legend below says what each came to
    panels = [(title, with_names(plot, rows, _WIDTH, _HEIGHT, names=False), rows)
              for title, plot in charts.of_comparison(task, list(over)).items()
              if "byte" not in title or any(row["sent"] for row in rows)]  # fmt: skip  # one worker sends nothing
    title = f"{task['name']}: test {task['metric']} against epochs, bytes and time"
    if over:
        title = f"{task['name']}: test {task['metric']} in the same training over slower links, and per byte"
    return save(sheet(document["config"]["light"], title, notes, panels, rows), out, "comparison")


def draw_codecs(rows: Sequence[Mapping[str, Any]], out: Path, name: str) -> list[Path]:
    """Writes the time of codecs with the fewest threads as ``name.svg`` and ``.png``, with a panel for each size.

    Args:
        rows: as :func:`grace_bench.report.contents.codec_row` makes them.
        out: a directory.
        name: of the files.
    """
    threads = min(row["threads"] for row in rows)
    unit = "time" if all(row["time"] is not None for row in rows) else "ratio"
    panels = []
    for size in sorted({row["size"] for row in rows if row["threads"] == threads}):
        members = [dict(row) for row in rows if (row["size"], row["threads"]) == (size, threads)]
        panels.append((f"{size:,} elements", charts.codecs(unit), members))
    title = f"Codec latency with {plural(threads, 'thread')}: median and quartiles"
    return save(sheet(config("light"), title, [], panels, []), out, name)


Panel = tuple[str, Spec, list[Row]]  # title, plot, and the rows that it shows


def _show(row: Mapping[str, Any], document: Mapping[str, Any]) -> Row:
    """A row with the look of its method and the name of its network; the page does the same."""
    method = document["methods"][row["method"]]
    own = {key: value for key, value in method.items() if key not in ("name", *document["config"])}
    place = {"opacity": 1, "name": row["label"], "network": document["links"][row["link"]]}
    return {**row, **own, **method["light"], **place}


def _panels(name: str, plots: Sequence[Spec], rows: Sequence[Row]) -> list[Panel]:
    if name in _ONE_PANEL:
        return [("", with_names(plots[0], rows, _ONE_PANEL[name], _HEIGHT), list(rows))]
    places = sorted({(row["link"], row["workers"]) for row in rows})
    several = len({workers for _, workers in places}) > 1
    out = []
    for place in places:
        members = [row for row in rows if (row["link"], row["workers"]) == place]
        title = members[0]["network"] + (f", {place[1]} workers" if several else "")
        out += [(title, with_names(plot, members, _WIDTH, _HEIGHT), members) for plot in plots]
    return out


def _notes(name: str, rows: Sequence[Row], task: Mapping[str, Any]) -> list[str]:
    """Notes that the reader must know."""
    workers, seeds = {row["workers"] for row in rows}, {row["seeds"] for row in rows}
    numbers, rounds = {row["seed"] for row in rows if "seed" in row}, {row.get("rounds", 1) for row in rows}
    runs = f"medians and ranges over {' or '.join(map(str, sorted(seeds)))} seeds"
    if rounds != {1}:
        runs += f" in {' or '.join(map(str, sorted(rounds)))} rounds"
    elif seeds == {1}:
        runs = f"one run each, {'seed' if len(numbers) == 1 else 'seeds'} {', '.join(map(str, sorted(numbers)))}"
    notes = [
        ", ".join([f"{count} workers" for count in workers if len(workers) == 1] + [runs]),
        *_explain(name, rows, task),
    ]
    if any(row["procedural"] for row in rows):
        notes.append(f"procedural data: {task['data']}".rstrip(": "))
    return notes


def _explain(name: str, rows: Sequence[Row], task: Mapping[str, Any]) -> list[str]:
    """Help for reading a figure; nothing that its data could contradict."""
    if name.startswith("quality-epoch-"):
        lost = sorted({row["label"] for row in rows if row["final"] is None and row["measured"]})
        return ["marks: the last evaluation" + (f"; diverged: {', '.join(lost)}" if lost else "")]
    if name == "prediction":
        errors = [abs(row["prediction_error"]) for row in rows if row["prediction_error"] is not None]
        within = sum(error <= charts.NEAR for error in errors)
        return [f"the band is \u00b1 {100 * charts.NEAR:g} %: {within} of {len(errors)} are within it"]
    if name == "step-time":
        log = "the axis is logarithmic, since one would flatten all others: bars reach from compute to the whole step"
        return [log if task["steps"] else "tick: the measured step"]
    mark = {"quality-throughput": "front_throughput", "quality-bytes": "front_sent"}.get(name)
    if mark is not None and all(row["seeds"] == 1 for row in rows):
        return ["no Pareto front, which takes several seeds"]
    places = [(row["link"], row["workers"], row["toolkit"]) for row in rows if mark is not None and row[mark]]
    lines = len(places) > len(set(places))  # one point is no line
    return ["broad line: the Pareto front, the points that no other clearly beats"] if lines else []


def _entries(rows: Sequence[Row], document: Mapping[str, Any]) -> list[Row]:
    """Entries of the legend: each method once, in the order of all."""
    by_method = {row["method"]: row for row in rows}
    return [
        {**by_method[index], "text": method["name"]}
        for index, method in enumerate(document["methods"])
        if index in by_method
    ]


def sheet(
    look: Spec, title: str, notes: Sequence[str], panels: Sequence[Panel], entries: Sequence[Row], *, columns: int = 4
) -> Spec:
    """All panels under one title, with one legend below."""
    across = min(len(panels), columns)
    parts: list[Spec] = [{"concat": [_panel(index, *panel) for index, panel in enumerate(panels)], "columns": across}]
    if entries:
        parts.append(_legend(entries, max(across * (_WIDTH + 70), 600)))
    return titled(title, list(notes), {"params": [{"name": "whole", "value": True}], "vconcat": parts}, look)


def _panel(index: int, title: str, plot: Spec, rows: Sequence[Row]) -> Spec:
    own: Spec = json.loads(json.dumps(plot).replace("data('rows')", f"data('rows{index}')"))
    own.pop("params", None)
    layers = [layer for layer in own["layer"] if layer.get("name") not in charts.ON_PAGE_ONLY]
    own["layer"] = [
        {key: layer[key] for key in layer if key != "name"} for layer in layers
    ]  # a name is for one panel only
    return {"width": _WIDTH, **own, "title": title, "data": {"name": f"rows{index}", "values": list(rows)}}


def _legend(entries: Sequence[Row], width: int) -> Spec:
    """Line, marker and ``text`` of each, in columns."""
    tall = any("\n" in entry["text"] for entry in entries)
    column, height = (235, 38) if tall else (200, 20)
    across = max(1, width // column)
    keys = ("text", "stroke", "fill", "shape", "dash", "width")
    values = [
        {**{key: entry[key] for key in keys}, "opacity": 1, "row": at // across, "left": column * (at % across)}
        for at, entry in enumerate(entries)
    ]
    down = -(-len(entries) // across)
    place: Spec = {
        axis: {"type": "quantitative", "axis": None, "scale": {"domain": ends, "nice": False}}
        for axis, ends in (("x", [0, width]), ("y", [-0.5, down - 0.5]))
    }
    y = {**place["y"], "field": "row", "scale": {**place["y"]["scale"], "reverse": True}}

    def layer(mark: Spec, shift: int, **more: Any) -> Spec:
        return {
            "transform": [
                {"calculate": f"datum.left + {shift}", "as": "at"},
                {"calculate": "datum.left + 34", "as": "end"},
            ],
            "mark": {"aria": False, **mark},
            "encoding": {"x": {**place["x"], "field": "at"}, "y": y, **more},
        }

    line = {key: value for key, value in LINE.items() if key != "detail"}
    mark = {key: value for key, value in MARK.items() if key != "tooltip"}
    return {
        "width": width,
        "height": height * down,
        "data": {"values": values},
        "layer": [
            layer({"type": "rule"}, 0, x2={"field": "end"}, **line),
            layer({"type": "point", "size": 60, "opacity": 1}, 17, **mark),
            layer({"type": "text", "style": "beside", "align": "left", "lineBreak": "\n", "aria": True,
                   "dy": -6 if tall else 0}, 42, text={"field": "text"}),
        ],
    }  # fmt: skip
