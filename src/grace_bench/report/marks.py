"""Parts of figures: layers, axes, and the look of lines and marks, for Vega-Lite documents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

Spec = dict[str, Any]

PLAIN = "format(datum.value, ',~g')"
BYTES = r"replace(format(datum.value, '.3~s'), regexp('([kMGT]?)$'), '\u00a0$1B')"
TIME = r"replace(format(datum.value / 1e6, '.3~s'), regexp('([nµm]?)$'), '\u00a0$1s')"
SPEED = "replace(format(datum.value, '~s'), /([kMGT]?)$/, ' $1bit/s')"
OPACITY = {"opacity": {"field": "opacity", "type": "quantitative", "scale": None}}
STROKE = {"stroke": {"field": "stroke", "type": "nominal", "scale": None}}
LINE = {
    **STROKE,
    **OPACITY,
    "strokeDash": {"field": "dash", "type": "nominal", "scale": None},
    "strokeWidth": {"field": "width", "type": "quantitative", "scale": None},
    "detail": [{"field": "label", "type": "nominal"}, {"field": "link"}, {"field": "workers"}, {"field": "toolkit"}],
}
MARK = {
    **STROKE,
    **OPACITY,
    "fill": {"field": "fill", "type": "nominal", "scale": None},
    "shape": {"field": "shape", "type": "nominal", "scale": None},
    "tooltip": {"field": "about"},
}


def figure(layers: list[Spec], says: str, height: int | Spec = 380) -> Spec:
    """A figure of layers that share their axes: what the first of them says about an axis need not be repeated."""
    for axis in ("x", "y"):
        for later in [part["encoding"] for part in layers if "field" in part["encoding"].get(axis, {})][1:]:
            kept = ("field", "type", "title", "sort", "stack")
            later[axis] = {key: later[axis][key] for key in kept if key in later[axis]}
    return {"description": says, "height": height, "data": {"name": "rows"}, "layer": layers}


def layer(
    mark: str, encoding: Spec, *transform: Spec,
    name: str = "", style: str = "", description: str = "", values: Any = None, **look: Any,
) -> Spec:  # fmt: skip
    """A layer. ``description``: an expression, the text of each mark for screen readers; without it they pass over the layer.
    ``values``: its own rows instead of the figure's.
    """
    told = {"description": {"field": "said"}} if description else {}
    steps = [*transform, *([{"calculate": description, "as": "said"}] if description else [])]
    own = {"name": name, "data": None if values is None else {"values": values}, "transform": steps}
    return {
        **{key: value for key, value in own.items() if value},
        "mark": {"type": mark, "clip": True, "aria": bool(description), **({"style": style} if style else {}), **look},
        "encoding": {**encoding, **told},
    }


def number(field: str, title: str | None, *, text: str | None = None, zero: bool = False, **more: Any) -> Spec:
    """A quantitative axis, linear; logarithmic where ``text`` tells how its ticks are written."""
    out: Spec = {"field": field, "type": "quantitative", "title": title, **more}
    if text is None:
        out["scale"] = {"zero": zero, "nice": zero, **({} if zero else {"padding": 18}), **more.get("scale", {})}
    else:
        out["scale"] = {"type": "log", "nice": False, "padding": 18}
        ends = f"extent(pluck(data('rows'), '{field}'))"
        fine, coarse = tick_values(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), tick_values(1, 2, 3, 5)
        out["axis"] = {
            "labelExpr": text,
            "labelOverlap": "greedy",
            "values": {"expr": f"{ends}[1] < 6 * {ends}[0] ? {fine} : {coarse}"},
        }
    return out


def tick_values(*steps: float) -> list[float]:
    """Ticks of a logarithmic axis: these steps of each decade."""
    return [step * 10**power if power >= 0 else step / 10**-power for power in range(-3, 14) for step in steps]


def stretch(values: Iterable[float | None], *, share: bool = False) -> Spec:
    """The kind of axis on which one outlier does not flatten all others, as keys of a scale; none if a linear one will do.

    Where half of all values lie on less than a seventh of the axis, it is logarithmic; for parts of one, whose differences
    are near the top, a power, on which the median is in the middle.

    >>> stretch([10, 11, 12, 13]), stretch([10, 11, 12, 13, 900])
    ({}, {'type': 'log'})
    """
    there = sorted(value for value in values if value is not None)
    if len(there) < 4 or there[0] < 0:
        return {}
    low, middle, high = statistics.quantiles(there, n=4, method="inclusive")
    if high - low >= (there[-1] - there[0]) / 7:
        return {}
    if share:
        return (
            {"type": "pow", "exponent": round(min(12.0, math.log(0.5) / math.log(middle)), 1)}
            if 0.75 < middle < 1
            else {}
        )
    return {"type": "log"} if there[-1] > 4 * there[0] > 0 else {}


def has_outlier(values: Iterable[float | None]) -> bool:
    """True if one or two values are so large that the others' bars would show nothing.

    >>> has_outlier([10, 20, 30, 40]), has_outlier([10, 11, 12, 13, 900])
    (False, True)
    """
    there = sorted((value for value in values if value is not None), reverse=True)
    return len(there) > 3 and there[0] > 8 * there[2]


def quality(task: Mapping[str, Any], field: str, what: str, axis: Spec, **more: Any) -> Spec:
    """``axis``: see :func:`stretch`."""
    title = f"test {task['metric']}{what}" + ("" if task["higher"] else ", lower is better")
    title += {"log": " (log)", "pow": " (axis stretched at the top)"}.get(axis.get("type", ""), "")
    form = {"format": ".3~%"} if task["share"] else {"labelExpr": PLAIN}
    out = number(field, title, axis={**form, "labelOverlap": "greedy"}, **more)
    scale = {**out["scale"], **axis}
    if axis.get("type") == "log":
        del scale["zero"]
    return {**out, "scale": scale}


def quality_text(value: float, task: Mapping[str, Any]) -> str:
    """A quality for people: ``92.1 %`` or ``97.31``."""
    return f"{100 * value:.4g}\u00a0%" if task["share"] else f"{value:.4g}"


def _range(axis: str, own: Spec, other: Spec) -> Spec:
    """A line from the least to the most over seeds along ``axis``, x or y; ``own`` is this axis' channel."""
    low, high = (f"{own['field']}_{end}" for end in ("low", "high"))
    across = {axis: {**own, "field": low}, f"{axis}2": {"field": high}, "y" if axis == "x" else "x": other}
    there = {"filter": f"isValid(datum.{low}) && isValid(datum.{high})"}
    return layer("rule", {**across, **STROKE, **OPACITY}, there, style="spread")


def points(x: Spec, y: Spec, *, ranges: str = "xy", size: int = 90) -> list[Spec]:
    """A point for each row, with the ranges over seeds along the axes in ``ranges``."""
    both = {"x": (x, y), "y": (y, x)}
    x_text, y_text = (
        f"format(datum['{channel['field']}'], '.3~s')"
        if channel["type"] == "quantitative"
        else f"datum['{channel['field']}']"
        for channel in (x, y)
    )
    description = f"datum.name + ': ' + {x_text} + ' {x['title']}, ' + {y_text} + ' {y['title']}'"
    marks = layer(
        "point", {"x": x, "y": y, **MARK}, name="points", description=description, size=size, strokeWidth=1.6, opacity=1
    )
    return [*(_range(axis, *both[axis]) for axis in ranges), marks]
