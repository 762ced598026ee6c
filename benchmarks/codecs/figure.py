"""Figures of a document: all methods at one size, and what has a goal. Boxes, in multiples of ``y.add_(x)``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.codecs.goals import RATIO, position
from grace.registry import recipe
from grace_bench.codecs.clock import OPERATIONS
from grace_bench.codecs.plan import size_text
from grace_bench.report.marks import tick_values
from grace_bench.report.render import save
from grace_bench.report.theme import COLORS, config
from grace_command.text import plural

_KINDS = {"reference": "reference kernels", "torch": "plain torch code"}  # rivals that are shown
_GOALS = ("goal, met", "goal, not met", "stretch")
Row = dict[str, Any]


def draw(document: Row, out: Path) -> list[Path]:
    """Writes ``codecs`` and, where goals were measured, ``codecs-goals`` into ``out``, each as PNG and SVG.

    Raises:
        MissingExtraError: vl-convert is not installed.
    """
    paths: list[Path] = []
    if methods := _method_rows(document):
        paths += save(_methods(document, methods), out, "codecs")
    if goals := _goal_rows(document):
        paths += save(_goals(document, goals), out, "codecs-goals")
    return paths


def _method_rows(document: Row) -> list[Row]:
    """Rows of all methods, with the fewest threads, at the largest size at which at least half of them were measured."""
    rows = [row for row in document["rows"] if row["method"] is not None]
    if not rows:
        return []
    threads = min(row["threads"] for row in rows)
    names: dict[int, set[str]] = {}
    for row in rows:
        names.setdefault(row["size"], set()).add(row["method"])
    most = max(map(len, names.values()))
    size = max(size for size, labels in names.items() if 2 * len(labels) >= most)
    return [row for row in rows if (row["size"], row["threads"]) == (size, threads)]


def _goal_rows(document: Row) -> list[tuple[Row, Row]]:
    """(goal, row or other) at the largest size at which there are such, in the order of the goals."""
    pairs = [
        ({**goal, "size": row["size"], "threads": row["threads"]}, part)
        for row in document["rows"]
        for part in (row, *row["others"])
        for goal in part["goals"]
        if goal["unit"] == RATIO
    ]
    largest = max((goal["size"] for goal, _ in pairs), default=0)
    return sorted((pair for pair in pairs if pair[0]["size"] == largest), key=lambda pair: position(pair[0]["row"]))


# ---- what is shown --------------------------------------------------------------------------------------------------
def _methods(document: Row, rows: Sequence[Row]) -> Row:
    cost = {row["method"]: row["ratio"] for row in reversed(rows)}  # the first operation's: encoding
    order, first = sorted(cost, key=lambda name: cost[name]), rows[0]
    panels = []
    shown = [operation for operation in OPERATIONS if any(row["operation"] == operation for row in rows)]
    for operation in shown:
        drawn = [row for row in rows if row["operation"] == operation]
        payloads = max((row["payloads"] or 0 for row in drawn), default=0)
        boxes = [_box(row, row["method"], recipe(row["method"].partition(":")[0]).family) for row in drawn]
        ticks = [_tick(row["method"], row["goal"], row["ratio"] <= row["goal"]) for row in drawn if row["goal"]]
        rivals = [rival for row in drawn for rival in _rivals(row, row["method"])]
        title = operation + (f" {payloads} workers" if payloads else "")
        ends = {"labels": operation == shown[0], "legend": operation == shown[-1]}
        panels.append(_panel(title, order, boxes, ticks, rivals, **ends))
    what = "caches emptied before each sample" if first["cold"] else "small: caches warm, the Python call included"
    return _sheet(
        f"Codecs at {size_text(first['size'])} elements",
        document,
        f"{plural(first['threads'], 'thread')}; {what}",
        panels,
    )


def _goals(document: Row, pairs: Sequence[tuple[Row, Row]]) -> Row:
    order = list(dict.fromkeys(goal["row"] for goal, _ in pairs))
    boxes = [_box(row, goal["row"], plural(goal["threads"], "thread")) for goal, row in pairs]
    ticks = [_tick(goal["row"], goal["goal"], goal["met"], plural(goal["threads"], "thread")) for goal, _ in pairs]
    ticks += [
        {**_tick(goal["row"], goal["stretch"], True, plural(goal["threads"], "thread")), "what": _GOALS[2]}
        for goal, _ in pairs
        if goal["stretch"] is not None
    ]
    rivals = [rival for goal, row in pairs for rival in _rivals(row, goal["row"])]
    met, size = sum(goal["met"] for goal, _ in pairs), size_text(pairs[0][0]["size"])
    panel = _panel("", order, boxes, ticks, rivals, width=640)
    title = f"{met} of {len(pairs)} goals met at {size} elements"
    return _sheet(title, document, "caches emptied before each sample", [panel])


# ---- pieces ---------------------------------------------------------------------------------------------------------
def _box(row: Row, name: str, kind: str) -> Row:
    ends = {"least": min(row["samples"]), "most": max(row["samples"])}
    return {"name": name, "kind": kind, "ratio": row["ratio"], "low": row["low"], "high": row["high"], **ends}


def _tick(name: str, ratio: float, met: bool, kind: str = "") -> Row:
    return {"name": name, "kind": kind, "ratio": ratio, "what": _GOALS[0] if met else _GOALS[1]}


def _rivals(row: Row, name: str) -> list[Row]:
    return [
        {"name": name, "ratio": other["ratio"], "what": _KINDS[other["kernels"]]}
        for other in row.get("others", [])
        if other["kernels"] in _KINDS
    ]


def _panel(
    title: str,
    order: Sequence[str],
    boxes: list[Row],
    ticks: list[Row],
    rivals: list[Row],
    *,
    labels: bool = True,
    legend: bool = True,
    width: int = 330,
) -> Row:
    """Quartiles, the whole range, the median; goals as ticks, rivals as hollow points; a line where one addition lies."""
    several = len({box["kind"] for box in boxes if box["kind"].endswith(("thread", "threads"))}) > 1
    y: Row = {"field": "name", "type": "nominal", "sort": list(order), "title": None, "scale": {"domain": list(order)}}
    y["axis"] = {"grid": True} if labels else {"grid": True, "labels": False}
    place: Row = {"y": y, **({"yOffset": {"field": "kind", "type": "nominal"}} if several else {})}
    x: Row = {
        "field": "ratio", "type": "quantitative", "title": "multiples of y.add_(x)",
        "scale": {"type": "log", "nice": False, "padding": 12},
        "axis": {"labelExpr": "format(datum.value, ',~g')", "values": tick_values(1, 3)},
    }  # fmt: skip
    shown = {"orient": "right", "direction": "vertical"} if legend else None  # one for all panels
    colors = {"range": list(COLORS)} if not several else {}
    color: Row = {"field": "kind", "type": "nominal", "legend": shown, "scale": colors}
    marks: Row = {
        "field": "what", "type": "nominal", "legend": shown,
        "scale": {"domain": list(_GOALS), "range": ["#228833", "#BB3322", "#999999"]},
    }  # fmt: skip
    shape: Row = {
        "field": "what", "type": "nominal", "legend": shown,
        "scale": {"domain": list(_KINDS.values()), "range": ["diamond", "cross"]},
    }  # fmt: skip

    def mark(kind: Row, **encoding: Any) -> Row:
        return {"mark": kind, "encoding": {**place, **encoding}}

    layers: list[Row] = [
        {"data": {"values": [{"one": 1}]}, "mark": {"type": "rule", "style": "diagonal"},
         "encoding": {"x": {**x, "field": "one"}}},
        mark({"type": "rule"}, x={**x, "field": "least"}, x2={"field": "most"}, color={**color, "legend": None}),
        mark({"type": "bar", "style": "quartiles"}, x={**x, "field": "low"}, x2={"field": "high"}, color=color),
        mark({"type": "tick", "style": "measured", "thickness": 1.6}, x=x),
    ]  # fmt: skip
    if rivals:
        point = {"type": "point", "size": 34, "filled": False, "strokeWidth": 1, "color": "#666666"}
        layers.append({"data": {"values": rivals}, "mark": point, "encoding": {"y": y, "x": x, "shape": shape}})
    if ticks:
        layers.append({"data": {"values": ticks}, **mark({"type": "tick", "thickness": 2.4}, x=x, color=marks)})
    return {
        "width": width, "height": {"step": 17 if several else 20, "for": "offset" if several else "position"}, "title": title,
        "data": {"values": boxes}, "layer": layers, "resolve": {"scale": {"color": "independent"}},
    }  # fmt: skip


def _sheet(title: str, document: Row, what: str, panels: list[Row]) -> Row:
    machine = document["environment"]
    says = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['kernels']}, torch {machine['torch']}; data "
        f"randn * exp(randn); {what}; boxes are quartiles, the line in them is the median"
    )
    return {
        "title": {"text": title, "subtitle": says, "fontSize": 15}, "description": f"{title}. {says}",
        "hconcat": panels, "resolve": {"scale": {"x": "shared", "color": "independent", "shape": "independent"}},
        "padding": 14, "spacing": 8, "config": config("light"),
    }  # fmt: skip
