"""Names beside lines and points, in files.

On a page Vega finds room for them, but that needs a canvas, which is missing when files are drawn. So the ends of both
axes are fixed here, and everything is placed in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grace_bench.report.charts import NEAR
from grace_bench.report.marks import LINE, MARK, Spec, tick_values
from grace_bench.report.theme import Sign

_LINE = 13.0  # pixels from one name to the next
_LETTER = 5.9  # pixels of a letter, about
_RADIUS = 6.0  # of a point
_AWAY = 38.0  # from the plot to the names beside it
_THIN: Spec = {"strokeWidth": 0.8, "strokeOpacity": 0.55, "clip": False}
_NAME: Spec = {"text": {"field": "name"}}
_PAD = 0.05  # of an axis, beyond its data
Row = dict[str, Any]
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, slots=True)
class Axis:
    """From least to most on so many pixels. ``power``: of a scale that is one; 0 is a logarithm."""

    least: float
    most: float
    pixels: float
    power: float = 1.0

    def part(self, value: float) -> float:
        """Position of this value, from 0 to 1."""
        low, high, at = (self._bend(number) for number in (self.least, self.most, value))
        return (at - low) / (high - low)

    def _bend(self, value: float) -> float:
        return math.copysign(abs(value) ** self.power, value) if self.power else math.log(value)

    @property
    def scale(self) -> Spec:
        """Expression of Vega-Lite."""
        kind = {1.0: {"type": "linear"}, 0.0: {"type": "log"}}.get(self.power, {"type": "pow", "exponent": self.power})
        return {**kind, "domain": [self.least, self.most], "nice": False, "zero": False}


def axis_of(
    values: Iterable[float | None], pixels: float, scale: Mapping[str, Any], *, zero: bool = False, pad: float = _PAD
) -> Axis:
    """An axis that holds all of these values with some room around them.

    Args:
        values: those that are None or, on a logarithmic axis, not positive are left out.
        pixels: its length.
        scale: of Vega-Lite: its ``type`` and ``exponent``.
        zero: whether it begins there.
        pad: room at each end, as a part of the axis.
    """
    power = {"log": 0.0, "pow": float(scale.get("exponent", 1.0))}.get(str(scale.get("type")), 1.0)
    there = [value for value in values if value is not None and (power or value > 0)] or [1.0]
    least, most = min(there), max(there)
    if power == 0:
        room = (most / least) ** pad if most > least else 1.5
        return Axis(least / room, most * room, pixels, power)
    room = pad * (most - least) or abs(most) / 10 or 1.0
    if power != 1:
        room = 0.02 * (most - least) or room  # where it is stretched, little is much
        least = max(room, least)
    return Axis(0.0 if zero else least - room, most + room, pixels, power)


def with_names(plot: Spec, rows: Sequence[Row], width: int, height: int, *, names: bool = True) -> Spec:
    """A plot of curves, of points or of lines over links, so wide, with names beside them; other plots stay as they are.

    ``names``: whether curves get theirs; a legend may have them.
    """
    marks = [layer for layer in plot["layer"] if layer.get("name") == "points" and layer["mark"]["type"] == "point"]
    if not marks:
        return {**plot, "width": width}
    x, y = (marks[0]["encoding"][axis]["field"] for axis in ("x", "y"))
    across, up = (_scale(plot, axis) for axis in ("x", "y"))
    own = [dict(layer) for layer in plot["layer"]]
    if any(layer.get("name") == "hover" for layer in plot["layer"]):  # curves
        ends = [(*end, row) for row in rows if (end := _end(row, x)) is not None]
        height = height_for(len(ends), height) if names else height
        target = [layer["encoding"]["y"]["datum"] for layer in own if "datum" in layer["encoding"].get("y", {})]
        qualities = [value for row in rows for key in ("quality", "low", "high") for value in row["curve"].get(key, ())]
        sides = (
            axis_of(
                (v for row in rows for v in row["curve"][x]), width, across, zero=across.get("type") != "log", pad=0.02
            ),
            axis_of([*qualities, *(row.get(f"final{end}") for row in rows for end in _RANGE), *target], height, up),
        )
        own += beside_ends(_locate(ends, *sides), width, height) if names else []
    elif marks[0]["encoding"]["x"]["type"] == "ordinal":  # lines
        links = sorted({row["link"] for row in rows})
        last: dict[tuple[object, ...], Row] = {}
        several = len({row["workers"] for row in rows}) > 1
        for row in sorted((row for row in rows if row[y] is not None), key=lambda row: row["link"]):
            named = f"{row['name']}, {row['workers']} workers" if several else row["name"]
            last[row["label"], row["workers"], row["toolkit"]] = {**row, "name": named}
        height = height_for(len(last), height)
        values = [row.get(f"{y}{end}") for row in rows for end in _RANGE]
        side = axis_of(values, height, up, zero=up.get("type") != "log")
        step = width / len(links)
        ends = [
            (step * (links.index(row["link"]) + 0.5), height * (1 - side.part(row[y])), row) for row in last.values()
        ]
        own += beside_ends(ends, width, height)
        return {**_fix_axes(plot, own, {"y": side}), "width": width, "height": height}
    else:
        sides = (
            axis_of((row.get(f"{x}{end}") for row in rows for end in _RANGE), width, across),
            axis_of((row.get(f"{y}{end}") for row in rows for end in _RANGE), height, up),
        )
        there = [(row[x], row[y], {**row, "rank": _rank(row, x, y)}) for row in rows if None not in (row[x], row[y])]
        own += beside_points(_locate(there, *sides), width, height, most=0 if y == "predicted_ms" else 3)
    return {**_fix_axes(plot, own, dict(zip("xy", sides, strict=True))), "width": width, "height": height}


_RANGE = ("", "_low", "_high")


def _scale(plot: Spec, axis: str) -> Spec:
    """The scale of an axis, from the first layer that has one."""
    for layer in plot["layer"]:
        if "scale" in (channel := layer["encoding"].get(axis, {})):
            return dict(channel["scale"])
    return {}


def _fix_axes(plot: Spec, layers: Sequence[Spec], axes: Mapping[str, Axis]) -> Spec:
    """The plot with these layers, and axes that end where they are said to."""
    out = [{**layer, "encoding": dict(layer["encoding"])} for layer in layers]
    for name, axis in axes.items():
        first = next(layer for layer in out if "scale" in layer["encoding"].get(name, {}))
        first["encoding"][name] = {**first["encoding"][name], "scale": axis.scale}
    return {**plot, "layer": out}


def _end(row: Row, x: str) -> tuple[float, float] | None:
    """The end of a curve: the last evaluation that is a number."""
    ends = [
        (at, value)
        for at, value in zip(row["curve"][x], row["curve"]["quality"], strict=True)
        if None not in (at, value)
    ]
    if row["final"] is not None and ends:
        return row["curve"][x][-1], row["final"]
    return ends[-1] if ends else None


def _locate(ends: Iterable[tuple[float, float, Row]], x: Axis, y: Axis) -> list[tuple[float, float, Row]]:
    there = [(across, up, row) for across, up, row in ends if (x.power or across > 0) and (y.power or up > 0)]
    return [(x.pixels * x.part(across), y.pixels * (1 - y.part(up)), row) for across, up, row in there]


def _rank(row: Row, x: str, y: str) -> int:
    """The name that comes first; among predictions, those that are off."""
    if y == "predicted_ms":
        return 0 if abs(row["prediction_error"] or 0) > NEAR else 1
    return 0 if row.get(f"front_{x}") else 1 if row["baseline"] else 2


def spread_out(wanted: Sequence[float], gap: float, most: float) -> list[float]:
    """Places in the order of the wanted ones, ``gap`` apart at least, between 0 and ``most``, and close to what is wanted.

    >>> spread_out([50, 52, 80], 10, 100)
    [46.0, 56.0, 80.0]
    """
    order = sorted(range(len(wanted)), key=lambda k: wanted[k])
    blocks: list[list[float]] = []  # the sum of wanted places less those in a row, and how many
    for nth, k in enumerate(order):
        blocks.append([wanted[k] - nth * gap, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + count]
    starts = [total / count for total, count in blocks for _ in range(int(count))]
    last = most - gap * (len(order) - 1)  # of the first, so that the last is within
    out = [0.0] * len(order)
    for nth, k in enumerate(order):
        out[k] = nth * gap + max(0.0, min(starts[nth], last))
    return out


def height_for(names: int, least: int) -> int:
    """The pixels that this many names need, one below the other."""
    return max(least, math.ceil(_LINE * (names + 1)))


def beside_ends(ends: Sequence[tuple[float, float, Row]], width: float, height: float) -> list[Spec]:
    """Layers of names in a column to the right of a plot, each with its mark and a line from where its row ends.

    Args:
        ends: x and y of each row's end, in pixels, and the row.
        width: of the plot.
        height: of the plot.
    """
    places = spread_out([y for _, y, _ in ends], _LINE, height)
    columns = {"bend": width + 4, "to": width + _AWAY - 9, "mark": width + _AWAY - 4, "text": width + _AWAY + 4}
    rows = [
        {**_look(row), **columns, "x": x, "y": y, "at": place} for (x, y, row), place in zip(ends, places, strict=True)
    ]
    ways: tuple[Spec, ...] = (
        {"x": _pixel("x"), "x2": {"field": "bend"}, "y": _pixel("y")},
        {"x": _pixel("bend"), "x2": {"field": "to"}, "y": _pixel("y"), "y2": {"field": "at"}},
    )
    return [
        *(_layer("rule", rows, {**way, "stroke": LINE["stroke"]}, **_THIN) for way in ways),
        _layer("point", rows, {"x": _pixel("mark"), "y": _pixel("at"), **_marks()}, size=38, opacity=1, clip=False),
        _layer(
            "text", rows, {"x": _pixel("text"), "y": _pixel("at"), **_NAME}, style="beside", align="left", clip=False
        ),
    ]


def lines_beside(
    curves: Mapping[str, tuple[Sign, Sequence[tuple[float, float]]]], x: Spec, y: Spec, across: Axis, up: Axis
) -> tuple[Spec, list[Spec]]:
    """A layer of lines, and the layers of their names beside their ends.

    Args:
        curves: by name, the sign of each and its points; there may be none.
        x: its channel.
        y: its channel.
        across: the axis of x.
        up: the axis of y.
    """
    rows, ends = list[Row](), list[tuple[float, float, Row]]()
    for name, (own, points) in curves.items():
        look = {"name": name, "opacity": 1, **own.shape, **own.paint("light")}
        plain = {key: value for key, value in look.items() if key != "shape"}
        rows += [{x["field"]: at, y["field"]: value, **plain} for at, value in points]
        if points:
            at, value = points[-1]
            ends.append((across.pixels * across.part(at), up.pixels * (1 - up.part(value)), look))
    encoding = {"x": x, "y": y, **LINE, "detail": [{"field": "name"}]}
    line = {"data": {"values": rows}, "mark": {"type": "line"}, "encoding": encoding}
    return line, beside_ends(ends, across.pixels, up.pixels)


def channel(field: str, title: str, axis: Axis, text: str, values: Sequence[float] = ()) -> Spec:
    """The channel of an axis whose ticks are written as the expression ``text``; ``values``: where they are, by default at 1,
    2 and 5 of each decade.
    """
    ticks = {"values": list(values)} if values else {"values": tick_values(1, 2, 5), "labelOverlap": "greedy"}
    return {
        "field": field, "type": "quantitative", "title": title, "scale": axis.scale, "axis": {"labelExpr": text, **ticks},
    }  # fmt: skip


def beside_points(points: Sequence[tuple[float, float, Row]], width: float, height: float, *, most: int) -> list[Spec]:
    """Layers of names beside points, where there is room: those with the least ``rank`` first, and none above ``most``.

    Args:
        points: x and y of each, in pixels, and its row.
        width: of the plot.
        height: of the plot.
        most: the last rank that has names.
    """
    taken: list[Box] = [(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y, _ in points]
    told = [point for point in points if point[2]["rank"] <= most]
    rows = []
    for x, y, row in sorted(told, key=lambda point: point[2]["rank"]):
        for box in _around(x, y, _LETTER * len(row["name"])):
            inside = box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= height
            if inside and not any(_touch(box, other) for other in taken):
                taken.append(box)
                ends = {"to": min(max(x, box[0]), box[2]), "at": min(max(y, box[1]), box[3])}
                rows.append({**_look(row), "x": x, "y": y, "left": box[0], "middle": (box[1] + box[3]) / 2, **ends})
                break
    way = {"x": _pixel("x"), "x2": {"field": "to"}, "y": _pixel("y"), "y2": {"field": "at"}, "stroke": LINE["stroke"]}
    far = [row for row in rows if math.hypot(row["x"] - row["to"], row["y"] - row["at"]) > 1.5 * _RADIUS]
    text = {"x": _pixel("left"), "y": _pixel("middle"), **_NAME}
    return [_layer("rule", far, way, **_THIN), _layer("text", rows, text, style="beside", align="left")]


def _around(x: float, y: float, long: float) -> Iterable[Box]:
    """Places for a name of so many pixels, the best first: beside its point, above, below, askew, and further away."""
    for away in (0, 14, 28):
        side, above, below = 9 + away, y - 8 - away - _LINE, y + 8 + away
        if not away:
            yield from ((left, y - _LINE / 2, left + long, y + _LINE / 2) for left in (x + side, x - side - long))
        for top in (above, below):
            for left in (x - long / 2, x + side - 3, x - side + 3 - long):
                yield left, top, left + long, top + _LINE


def _touch(box: Box, other: Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _look(row: Row) -> Row:
    return {key: row[key] for key in ("name", "stroke", "fill", "shape", "dash", "width", "opacity")}


def _marks() -> Spec:
    return {key: value for key, value in MARK.items() if key != "tooltip"}


def _pixel(field: str) -> Spec:
    return {"field": field, "type": "quantitative", "scale": None, "axis": None}


def _layer(mark: str, rows: Sequence[Row], encoding: Spec, **look: Any) -> Spec:
    return {
        "data": {"values": list(rows)},
        "mark": {"type": mark, "aria": mark == "text", **look},
        "encoding": encoding,
    }
