"""Figures of a document: all methods at one size, and what has a goal. Boxes of quartiles, in multiples of ``y.add_(x)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.codecs.goals import RATIO, position
from grace.bench.codecs.clock import OPERATIONS
from grace.bench.codecs.plan import size_text
from grace.bench.report.charts import Spec, tick_values
from grace.bench.report.render import save
from grace.bench.report.theme import COLOURS, TONES, config
from grace.registry import recipe

Row = dict[str, Any]

_FAMILIES = dict(
    zip(("quantization", "sparsification", "low rank", "hybrid", "cast", "rotation"), COLOURS, strict=False)
)
_OTHER = "#777777"
_GOALS = {"goal, met": "#228833", "goal, not met": "#BB3322", "stretch": "#999999"}
_KERNELS = {"reference": ("diamond", "reference kernels"), "torch": ("cross", "plain torch code")}
_TITLES = dict(zip(OPERATIONS, ("encode", "encode with error feedback", "decode and sum"), strict=True))


def draw(document: Row, out: Path) -> list[Path]:
    """Writes ``codecs`` and, where goals were measured, ``codecs-goals`` into ``out``, each as SVG and PNG.

    Raises:
        MissingExtraError: vl-convert is not installed.
    """
    paths: list[Path] = []
    methods, goals = _method_rows(document), _goal_rows(document)
    if methods:
        paths += save(_methods(document, methods), out, "codecs")
    if goals:
        paths += save(_goals(document, goals), out, "codecs-goals")
    return paths


def _method_rows(document: Row) -> list[Row]:
    """Those of all methods, with the fewest threads, at the largest size at which at least half of them were measured."""
    rows = [row for row in document["rows"] if row["method"] is not None]
    if not rows:
        return []
    threads = min(row["threads"] for row in rows)
    names: dict[int, set[str]] = {}
    for row in rows:
        names.setdefault(row["size"], set()).add(row["method"])
    most = max(map(len, names.values()))
    size = max(size for size, found in names.items() if 2 * len(found) >= most)
    return [row for row in rows if (row["size"], row["threads"]) == (size, threads)]


def _goal_rows(document: Row) -> list[tuple[Row, Row]]:
    """(goal, row or other) at the largest size at which there are such, in the order of the goals."""
    pairs = [
        ({**goal, "size": row["size"], "threads": row["threads"], "others": row["others"]}, part)
        for row in document["rows"]
        for part in (row, *row["others"])
        for goal in part["goals"]
        if goal["unit"] == RATIO
    ]
    largest = max((goal["size"] for goal, _ in pairs), default=0)
    found = [pair for pair in pairs if pair[0]["size"] == largest]
    return sorted(found, key=lambda pair: position(pair[0]["row"]))


def _methods(document: Row, rows: Sequence[Row]) -> Spec:
    cost = {row["method"]: row["ratio"] for row in reversed(rows)}  # the first operation's: encoding
    names = sorted(cost, key=lambda name: float(cost[name]))
    panels: list[tuple[str, Marks]] = []
    for operation, title in _TITLES.items():
        own = [row for row in rows if row["operation"] == operation]
        payloads = {row["payloads"] for row in own if row["payloads"]}
        boxes = [_box(row["method"], row, _family(row["method"])) for row in own]
        ticks = [
            _tick(row["method"], row["goal"], row["ratio"] <= row["goal"]) for row in own if row["goal"] is not None
        ]
        if own:
            marks = Marks(boxes, ticks, [mark for row in own for mark in _others(row["method"], row)])
            panels.append((title + (f" {max(payloads)} workers" if payloads else ""), marks))
    scales = _Scales([marks for _, marks in panels], names, _FAMILIES | {"other": _OTHER})
    plots: list[Spec] = []
    for title, marks in panels:
        layers = scales.layers(marks, labels=not plots)
        plots.append({"title": title, "width": 300, "height": {"step": 17}, "layer": layers})
    first = rows[0]
    what = "caches emptied before each sample" if first["cold"] else "small: caches warm, the Python call included"
    threads = f"; {first['threads']} thread" + ("s" if first["threads"] > 1 else "")
    body = {
        "hconcat": plots,
        "resolve": {"scale": dict.fromkeys(("x", "y", "color", "fill", "stroke", "shape"), "shared")},
    }
    return _sheet(f"Codecs at {size_text(first['size'])} elements", document, threads, what, body)


def _goals(document: Row, pairs: Sequence[tuple[Row, Row]]) -> Spec:
    names = list(dict.fromkeys(goal["row"] for goal, _ in pairs))
    counts = sorted({goal["threads"] for goal, _ in pairs})
    words = [f"{count} thread{'s' if count > 1 else ''}" for count in counts]
    boxes, ticks, marks = [], [], []
    for goal, row in pairs:
        word = words[counts.index(goal["threads"])]
        boxes.append(_box(goal["row"], row, word))
        ticks.append({**_tick(goal["row"], goal["goal"], goal["met"]), "kind": word})
        if goal["stretch"] is not None:
            ticks.append({"name": goal["row"], "at": goal["stretch"], "goal": "stretch", "kind": word})
        if goal["threads"] == counts[0]:
            marks += _others(goal["row"], row)
    colours = dict(zip(words, (COLOURS[k] for k in (0, 5, 3, 4)), strict=False))
    own = Marks(boxes, ticks, marks)
    layers = _Scales([own], names, colours, beside=words).layers(own)
    met = sum(goal["met"] for goal, _ in pairs)
    title = f"{met} of {len(pairs)} goals met at {size_text(pairs[0][0]['size'])} elements"
    body = {"width": 560, "height": {"step": 26, "for": "position"}, "layer": layers}
    return _sheet(title, document, "", "caches emptied before each sample", body)


class Marks(NamedTuple):
    """What one panel shows, each with the ``name`` of its row."""

    boxes: list[Row]
    goals: list[Row]
    others: list[Row]


def _box(name: str, row: Row, kind: str) -> Row:
    return {"name": name, "kind": kind, **{key: row[key] for key in ("ratio", "low", "high")}}


def _tick(name: str, goal: float, met: bool) -> Row:
    return {"name": name, "at": goal, "goal": "goal, met" if met else "goal, not met"}


def _others(name: str, row: Row) -> list[Row]:
    found = [other for other in row.get("others", ()) if other["kernels"] in _KERNELS]
    return [{"name": name, "at": other["ratio"], "kernels": _KERNELS[other["kernels"]][1]} for other in found]


class _Scales:
    """What the panels of a figure share: axes and legends of what any of them shows.

    Args:
        panels: what is shown.
        names: of the rows, from the top.
        colours: of kinds of boxes.
        beside: kinds that lie beside each other in a row.
    """

    def __init__(
        self, panels: Sequence[Marks], names: Sequence[str], colours: Mapping[str, str], *, beside: Sequence[str] = ()
    ):
        boxes = [row for panel in panels for row in panel.boxes]
        ticks = [row for panel in panels for row in panel.goals]
        others = [row for panel in panels for row in panel.others]
        ends = [row[key] for row in boxes for key in ("low", "high")] + [row["at"] for row in (*ticks, *others)]
        steps = (1, 3) if max(ends) > 100 * min(ends) else (1, 2, 3, 5)
        self.x: Spec = {
            "type": "quantitative", "title": "multiples of y.add_(x)", "scale": {"type": "log", "nice": False, "padding": 10},
            "axis": {"values": tick_values(*steps), "labelExpr": "format(datum.value, datum.value < 1000 ? '~g' : '~s')"},
        }  # fmt: skip
        self.y: Spec = {"field": "name", "type": "nominal", "title": None, "scale": {"domain": list(names)}}
        self.beside = {"yOffset": {"field": "kind", "scale": {"domain": list(beside)}}} if beside else {}
        self.kind = _channel("kind", colours, boxes)
        self.goal = {**_channel("goal", _GOALS, ticks), "legend": {"symbolType": "stroke", "symbolStrokeWidth": 2.5}}
        self.kernels = _channel("kernels", {word: shape for shape, word in _KERNELS.values()}, others)

    def layers(self, marks: Marks, *, labels: bool = True) -> list[Spec]:
        """A line where one addition lies, boxes with their medians, goals, and other kernels."""
        y = {**self.y, "axis": {"grid": True, **({} if labels else {"labels": False})}}
        said = "datum.name + ', ' + datum.kind + ': ' + format(datum.ratio, '.3~g')"

        def layer(rows: Sequence[Row], field: str, mark: Spec, **more: Any) -> Spec:
            encoding = {"x": {**self.x, "field": field}, **({"y": y} if rows else {}), **more}
            return {
                "data": {"values": list(rows) or [{field: 1}]},
                "mark": {"aria": False, **mark},
                "encoding": encoding,
            }

        median = layer(marks.boxes, "ratio", {"type": "tick", "style": "measured", "thickness": 1.5, "size": 10, "aria": True},
                       **self.beside, description={"field": "said"})  # fmt: skip
        out = [
            layer((), "at", {"type": "rule", "style": "diagonal"}),
            layer(marks.boxes, "low", {"type": "bar", "style": "quartiles", "height": {"band": 0.75}}, x2={"field": "high"},
                  color=self.kind, **self.beside),
            {**median, "transform": [{"calculate": said, "as": "said"}]},
        ]  # fmt: skip
        if marks.goals:
            out.append(
                layer(
                    marks.goals, "at", {"type": "tick", "thickness": 2}, stroke=self.goal, fill=self.goal, **self.beside
                )
            )
        if marks.others:
            look = {"type": "point", "size": 32, "color": TONES["light"]["quiet"], "fill": "white", "opacity": 1}
            out.append(layer(marks.others, "at", look, shape=self.kernels))
        return out


def _channel(field: str, looks: Mapping[str, str], rows: Sequence[Row]) -> Spec:
    used = [word for word in looks if any(row[field] == word for row in rows)]
    return {"field": field, "type": "nominal", "scale": {"domain": used, "range": [looks[word] for word in used]}}


def _family(name: str) -> str:
    found = recipe(name.partition(":")[0]).family
    return found if found in _FAMILIES else "other"


def _sheet(title: str, document: Row, threads: str, what: str, body: Spec) -> Spec:
    machine = document["environment"]
    said = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['kernels']}, torch {machine['torch']}{threads}",
        f"data randn * exp(randn); {what}; boxes are quartiles, the line in them is the median",
    ]
    look = config("light")
    return {
        **body,
        "title": {"text": title, "subtitle": said, "fontSize": 15},
        "description": f"{title}. {'; '.join(said)}",
        "padding": 12,
        "config": {**look, "legend": {**look["legend"], "orient": "bottom"}},
    }
