"""The figures, each described once: Vega-Lite documents without data, for the page and for files.

The dataset ``rows`` has those of :mod:`grace.bench.report.contents`, with the look of their method (``stroke``, ``fill``,
``shape``, ``dash``, ``width``), an ``opacity``, a ``name``, and in the page what a pointer is told (``about``). A measure
is a field ``NAME``; ``NAME_low`` and ``NAME_high`` are its range over seeds, where there is one. Colours and fonts are those
of :mod:`grace.bench.report.theme`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Spec = dict[str, Any]

_PLAIN = "format(datum.value, ',~g')"
_BYTES = r"replace(format(datum.value, '.3~s'), regexp('([kMGT]?)$'), '\u00a0$1B')"
_TIME = r"replace(format(datum.value / 1e6, '.3~s'), regexp('([nµm]?)$'), '\u00a0$1s')"
_OPACITY = {"opacity": {"field": "opacity", "type": "quantitative", "scale": None}}
_STROKE = {"stroke": {"field": "stroke", "type": "nominal", "scale": None}}
LINE = {
    **_STROKE,
    **_OPACITY,
    "strokeDash": {"field": "dash", "type": "nominal", "scale": None},
    "strokeWidth": {"field": "width", "type": "quantitative", "scale": None},
    "detail": [{"field": "label", "type": "nominal"}, {"field": "link"}, {"field": "workers"}],
}
MARK = {
    **_STROKE,
    **_OPACITY,
    "fill": {"field": "fill", "type": "nominal", "scale": None},
    "shape": {"field": "shape", "type": "nominal", "scale": None},
    "tooltip": {"field": "about"},
}
ON_PAGE_ONLY = {
    "hover",
    "labels",
}  # layers: what a pointer finds, and names, which Vega places where there is room on a screen


def _figure(layers: list[Spec], says: str, height: int | Spec = 380) -> Spec:
    """A figure of layers that share their axes: what the first of them says of an axis need not be said again."""
    for axis in ("x", "y"):
        for layer in [one for one in layers if "field" in one["encoding"].get(axis, {})][1:]:
            kept = ("field", "type", "title", "sort", "stack")
            layer["encoding"][axis] = {
                key: layer["encoding"][axis][key] for key in kept if key in layer["encoding"][axis]
            }
    return {"description": says, "height": height, "data": {"name": "rows"}, "layer": layers}


def _layer(
    mark: str, encoding: Spec, *transform: Spec,
    name: str = "", style: str = "", said: str = "", values: Any = None, **look: Any,
) -> Spec:  # fmt: skip
    """A layer. ``said``: an expression, what of each mark is told to who cannot see it; without it the layer is silent.
    ``values``: its own rows instead of the figure's.
    """  # fmt: skip
    told = {"description": {"field": "said"}} if said else {}
    steps = [*transform, *([{"calculate": said, "as": "said"}] if said else [])]
    own = {"name": name, "data": None if values is None else {"values": values}, "transform": steps}
    return {
        **{key: value for key, value in own.items() if value},
        "mark": {"type": mark, "clip": True, "aria": bool(said), **({"style": style} if style else {}), **look},
        "encoding": {**encoding, **told},
    }


def _number(field: str, title: str | None, *, text: str | None = None, zero: bool = False, **more: Any) -> Spec:
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
    """Of a logarithmic axis: these steps of each decade."""
    return [step * 10**power if power >= 0 else step / 10**-power for power in range(-3, 14) for step in steps]


def _quality(task: Mapping[str, Any], field: str, what: str, **more: Any) -> Spec:
    title = f"{what} {task['metric']}" + ("" if task["higher"] else ", lower is better")
    return _number(field, title, axis={"format": ".3~%" if task["share"] else "~g"}, **more)


def quality_text(value: float, task: Mapping[str, Any]) -> str:
    """A quality for people: ``92.1 %`` or ``97.31``."""
    return f"{100 * value:.4g}\u00a0%" if task["share"] else f"{value:.4g}"


def _range(axis: str, own: Spec, other: Spec) -> Spec:
    """A line from the least to the most over seeds along ``axis``, x or y; ``own`` is this axis' channel."""
    low, high = (f"{own['field']}_{end}" for end in ("low", "high"))
    across = {axis: {**own, "field": low}, f"{axis}2": {"field": high}, "y" if axis == "x" else "x": other}
    there = {"filter": f"isValid(datum.{low}) && isValid(datum.{high})"}
    return _layer("rule", {**across, **_STROKE, **_OPACITY}, there, style="spread")


def _points(x: Spec, y: Spec, *, ranges: str = "xy", size: int = 90) -> list[Spec]:
    both = {"x": (x, y), "y": (y, x)}
    x_said, y_said = (
        f"format(datum['{one['field']}'], '.3~s')" if one["type"] == "quantitative" else f"datum['{one['field']}']"
        for one in (x, y)
    )
    said = f"datum.name + ': ' + {x_said} + ' {x['title']}, ' + {y_said} + ' {y['title']}'"
    marks = _layer("point", {"x": x, "y": y, **MARK}, name="points", said=said, size=size, strokeWidth=1.6, opacity=1)
    return [*(_range(axis, *both[axis]) for axis in ranges), marks]


# ---- survey, figure 1 ----
def curves(task: Mapping[str, Any], x: str, title: str, *, text: str | None = None) -> Spec:
    """Quality over a run. The axis starts where methods differ; the signal ``whole`` of the page shows all.

    Args:
        task: ``metric``, ``higher``, ``share`` and ``target``.
        x: epoch, seconds, or sent.
        title: of the x axis.
        text: how ticks are written, if it is logarithmic.
    """
    ends = "extent(pluck(data('rows'), 'final_low'))", "extent(pluck(data('rows'), 'final_high'))"
    least, most = f"min({ends[0]}[0], {ends[1]}[0])", f"max({ends[0]}[1], {ends[1]}[1])"
    span = f"max({most} - {least}, 0.02 * abs({most}), 1e-9)"
    below, above = (0.45, 0.14) if task["higher"] else (0.14, 0.45)
    floor, none = f"{least} - {below} * {span}", f"whole || !isValid({least})"  # as when all have diverged
    scale = {
        "domainMin": {"expr": f"{none} ? null : {f'max({floor}, 0)' if task['share'] else floor}"},
        "domainMax": {"expr": f"{none} ? null : {most} + {above} * {span}"},
        "padding": 0,
    }
    y = _quality(task, "quality", "test", scale=scale)
    across = _number(x, title, text=text, zero=True, scale={"nice": False})
    unpacked = [x, "epoch", "seconds", "quality"] if x not in ("epoch", "seconds") else ["epoch", "seconds", "quality"]

    def flat(*names: str, more: str = "true") -> list[Spec]:
        kept = more + (f" && datum.{x} > 0" if text else "")
        return [{"flatten": [f"curve.{name}" for name in names], "as": list(names)}, {"filter": kept}]

    form = ".1%" if task["share"] else ".4~g"
    here = (
        f"{{'here': format(datum.quality, '{form}'), 'epoch': format(datum.epoch, '.3~g'), "
        "'seconds': format(datum.seconds, '.3~s')}"
    )
    last = {"calculate": f"peek(datum.curve['{x}'])", "as": x}
    low, high = {**y, "field": "low"}, {"field": "high"}
    fill = {"field": "stroke", "type": "nominal", "scale": None}
    layers = [
        _layer("area", {"x": across, "y": low, "y2": high, "detail": LINE["detail"], "fill": fill},
               {"filter": "isValid(datum.curve.low) && datum.opacity == 1"},
               *flat(x, "low", "high", more="isValid(datum.low) && isValid(datum.high)"), style="seeds"),
        _layer("line", {"x": across, "y": y, **LINE}, *flat(x, "quality"), invalid="break-paths-show-path-domains"),
        _layer("point", {"x": across, "y": y, "tooltip": {"field": "about"}}, *flat(*unpacked, more="isValid(datum.quality)"),
               {"calculate": f"merge(datum.about, {here})", "as": "about"},
               name="hover", filled=True, opacity=1, fillOpacity=0, size=60),
        _layer("point", {"x": across, "y": {**y, "field": "final"}, **MARK}, last, {"filter": "isValid(datum.final)"},
               name="points", said="datum.name + ' ends at ' + format(datum.final, '.4~g')", size=55, opacity=1),
        _layer("rule", {"x": across}, last, {"calculate": f"1.03 * datum.{x}", "as": x}, opacity=0),  # room for the last mark
    ]  # fmt: skip
    if task["target"] is not None:
        at = {"y": {"datum": task["target"]}}
        words = {"x": {"value": 0}, "text": {"value": f"target {quality_text(task['target'], task)}"}}
        layers.append(_layer("rule", at, values=[{}], style="goal"))
        layers.append(_layer("text", {**at, **words}, values=[{}], style="small", align="left", dx=4, dy=-6))
    says = f"Lines of test {task['metric']} against {title}, one for each method."
    return {**_figure(layers, says), "params": [{"name": "whole", "value": False}]}


# ---- survey, figures 6 and 7 ----
def tradeoff(task: Mapping[str, Any], measure: str, title: str, *, text: str | None = None) -> Spec:
    """Final quality against a measure, ``throughput`` or ``sent``, with the Pareto front of one network."""
    x, y = _number(measure, title, text=text), _quality(task, "final", "final test")
    front = _layer(
        "line", {"x": x, "y": y},
        {"joinaggregate": [{"op": "distinct", "field": key, "as": f"{key}_count"} for key in ("link", "workers")]},
        {"filter": f"datum.front_{measure} && datum.link_count * datum.workers_count == 1"}, style="front",
    )  # fmt: skip
    rank = {"calculate": f"datum.singled ? 0 : datum.front_{measure} ? 1 : datum.baseline ? 2 : 3", "as": "rank"}
    shown = {"filter": "datum.opacity == 1"}
    labels = _layer("text", {"x": x, "y": y, "text": {"field": "name"}}, shown, rank, name="labels", style="beside")
    says = f"Points of final test {task['metric']} against {title}, one for each method."
    return _figure([front, *_points(x, y), labels], says, 440)


# ---- the time of a step ----
def step_time(task: Mapping[str, Any]) -> Spec:
    """Bars of the parts of a step. Exposed communication contains the codec's time, of which some may hide behind the backward
    pass: parts add up to the step.
    """  # fmt: skip
    parts = ("compute", "codec", "other exposed communication", "exchange")
    y = {"field": "name", "type": "nominal", "title": None, "sort": {"field": "step_ms", "op": "max"}}
    x = _number("step_ms", "milliseconds of a step", zero=True)
    seen = "isValid(datum.exposed_ms) ? min(datum.codec_ms || 0, datum.exposed_ms) : datum.codec_ms"
    rest = "isValid(datum.exposed_ms) ? datum.exposed_ms - datum.codec : null"
    colour = {"field": "part", "type": "nominal", "sort": list(parts)}
    order = {"field": "order", "type": "quantitative"}
    told = {"tooltip": {"field": "about"}, **_OPACITY}
    stack = _layer(
        "bar", {"y": y, "x": {**x, "field": "ms", "stack": "zero"}, "order": order, "color": colour, **told},
        {"calculate": "datum.compute_ms", "as": parts[0]}, {"calculate": seen, "as": parts[1]},
        {"calculate": rest, "as": parts[2]},
        {"calculate": "isValid(datum.exposed_ms) ? null : datum.exchange_ms", "as": parts[3]},
        {"fold": list(parts), "as": ["part", "ms"]}, {"filter": "isValid(datum.ms)"},
        {"calculate": f"indexof({list(parts)}, datum.part)", "as": "order"},
        name="parts", said="datum.name + ': ' + datum.part + ' ' + format(datum.ms, '.3~g') + ' ms'", height={"band": 0.7},
    )  # fmt: skip
    limit = _layer("rule", {"x": x}, {"filter": "datum.reference"}, style="goal")
    tick = _layer("tick", {"x": x, "y": y, **told}, style="measured", thickness=2.5, size=16)
    ends = {"x": {**x, "field": "step_ms_low"}, "x2": {"field": "step_ms_high"}, "y": y, **_OPACITY}
    spread = _layer("rule", ends, {"filter": "isValid(datum.step_ms_low)"}, style="measured")
    says = f"Bars of the milliseconds of a step of {task['name']}, one for each method, in their parts."
    return _figure([stack, limit, spread, tick], says, {"step": 24})


# ---- survey, figures 9 and 10 ----
def links(task: Mapping[str, Any]) -> Spec:
    """Throughput over every network, from slow to fast."""
    x: Spec = {
        "field": "network", "type": "ordinal", "title": "link, slow to fast", "sort": {"field": "link", "op": "min"},
        "axis": {"labelAngle": 0, "grid": True},
    }  # fmt: skip
    y = _number("throughput", "samples per second, all workers", zero=True)
    detail = [{"field": "label"}, {"field": "workers"}]
    line = _layer("line", {"x": x, "y": y, **LINE, "detail": detail})
    says = f"Lines of samples per second of {task['name']} against the link, one for each method."
    return _figure([line, *_points(x, y, ranges="y", size=60)], says, 440)


# ---- the link model ----
def prediction(task: Mapping[str, Any]) -> Spec:
    """The predicted step against the measured one, with the diagonal and 15 % around it."""
    x, y = (
        _number(f"{name}_ms", f"{word} step, ms", text=_PLAIN)
        for name, word in (("step", "measured"), ("predicted", "predicted"))
    )
    ends: list[Spec] = [
        {"fold": ["step_ms", "predicted_ms"], "as": ["which", "ms"]},
        {"aggregate": [{"op": "min", "field": "ms", "as": "from"}, {"op": "max", "field": "ms", "as": "to"}]},
        {"fold": ["from", "to"], "as": ["end", "at"]},
        {"calculate": "0.85 * datum.at", "as": "low"},
        {"calculate": "1.15 * datum.at", "as": "high"},
    ]
    across = {**x, "field": "at"}
    band = _layer("area", {"x": across, "y": {**y, "field": "low"}, "y2": {"field": "high"}}, *ends, style="near")
    diagonal = _layer("line", {"x": across, "y": {**y, "field": "at"}}, *ends, style="diagonal")
    says = f"Points of the predicted step of {task['name']} against the measured one, one for each method and network."
    return _figure([band, diagonal, *_points(x, y)], says, 440)


# ---- survey, figure 8 ----
def codecs(unit: str) -> Spec:
    """Boxes of the quartiles of codecs: rows of ``name``, ``kind`` and, for the unit ``time`` (microseconds) or ``ratio``
    (multiples of ``y.add_(x)``), its median and quartiles: ``time``, ``time_low``, ``time_high``.
    """  # fmt: skip
    names = {"time": ("time of one tensor", _TIME), "ratio": ("multiples of y.add_(x) of the same size", _PLAIN)}
    title, text = names[unit]
    cost: list[Spec] = [
        {"filter": f"datum.{unit} > 0"},
        {"joinaggregate": [{"op": "sum", "field": unit, "as": "cost"}], "groupby": ["name"]},
    ]
    y: Spec = {"field": "name", "type": "nominal", "title": None, "sort": {"field": "cost", "op": "max"}}
    x, kind = _number(unit, title, text=text), {"field": "kind", "type": "nominal"}
    each: Spec = {"y": {**y, "axis": {"grid": True}}, "yOffset": kind, "color": kind, "tooltip": {"field": "about"}}
    ends = {"x": {**x, "field": f"{unit}_low"}, "x2": {"field": f"{unit}_high"}}
    said = f"datum.name + ' ' + datum.kind + ': ' + format(datum.{unit}, '.3~s')"
    box = _layer("bar", {**each, **ends}, style="quartiles")
    middle = _layer("tick", {**each, "x": x}, name="points", said=said, opacity=1, thickness=3)
    says = "Boxes of the time of codecs, for each method and operation."
    return {**_figure([box, middle], says, {"step": 26, "for": "position"}), "transform": cost}


def of_task(task: Mapping[str, Any]) -> dict[str, list[Spec]]:
    """The figures of a task, by name; figure 1 is two plots."""
    return {
        "quality-epoch-time": [curves(task, "epoch", "epochs"), curves(task, "seconds", "seconds of training")],
        "quality-throughput": [tradeoff(task, "throughput", "samples per second, all workers")],
        "quality-bytes": [tradeoff(task, "sent", "bytes sent by each worker and step", text=_BYTES)],
        "step-time": [step_time(task)],
        "links": [links(task)],
        "prediction": [prediction(task)],
    }


def of_comparison(task: Mapping[str, Any]) -> list[Spec]:
    """What quality costs in epochs, in bytes and in time."""
    return [
        curves(task, "epoch", "epochs"),
        curves(task, "sent", "bytes sent by each worker, so far", text=_BYTES),
        curves(task, "seconds", "seconds of training, so far"),
    ]
