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


def _number(field: str, title: str | None, *, text: str | None = None, zero: bool = False, **more: Any) -> Spec:
    """A quantitative axis, linear; logarithmic where ``text`` tells how its ticks are written."""
    out: Spec = {"field": field, "type": "quantitative", "title": title, **more}
    if text is None:
        out["scale"] = {"zero": zero, "nice": zero, **({} if zero else {"padding": 18}), **more.get("scale", {})}
    else:
        out["scale"] = {"type": "log", "nice": False, "padding": 18}
        ends = f"extent(pluck(data('rows'), '{field}'))"
        fine, coarse = tick_values(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), tick_values(1, 2, 3, 5)
        out["axis"] = {"labelExpr": text, "values": {"expr": f"{ends}[1] < 6 * {ends}[0] ? {fine} : {coarse}"}}
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
    return {
        "transform": [{"filter": f"isValid(datum.{low}) && isValid(datum.{high})"}],
        "mark": {"type": "rule", "style": "spread", "clip": True, "aria": False},
        "encoding": {
            axis: {**own, "field": low},
            f"{axis}2": {"field": high},
            "y" if axis == "x" else "x": other,
            **_STROKE,
            **_OPACITY,
        },
    }


def _points(x: Spec, y: Spec, *, ranges: str = "xy", size: int = 90) -> list[Spec]:
    both = {"x": (x, y), "y": (y, x)}
    x_said, y_said = (
        f"format(datum['{one['field']}'], '.3~s')" if one["type"] == "quantitative" else f"datum['{one['field']}']"
        for one in (x, y)
    )
    said = f"datum.name + ': ' + {x_said} + ' {x['title']}, ' + {y_said} + ' {y['title']}'"
    return [_range(axis, *both[axis]) for axis in ranges] + [{
        "name": "points",
        "transform": [{"calculate": said, "as": "said"}],
        "mark": {"type": "point", "size": size, "strokeWidth": 1.6, "opacity": 1, "clip": True},
        "encoding": {"x": x, "y": y, **MARK, "description": {"field": "said"}},
    }]  # fmt: skip


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
    floor = f"{least} - {below} * {span}"
    scale = {
        "domainMin": {"expr": f"whole ? null : {f'max({floor}, 0)' if task['share'] else floor}"},
        "domainMax": {"expr": f"whole ? null : {most} + {above} * {span}"},
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
    layers: list[Spec] = [
        {
            "transform": [{"filter": "isValid(datum.curve.low) && datum.opacity == 1"},
                          *flat(x, "low", "high", more="isValid(datum.low) && isValid(datum.high)")],
            "mark": {"type": "area", "style": "seeds", "clip": True, "aria": False},
            "encoding": {"x": across, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "detail": LINE["detail"],
                         "fill": {"field": "stroke", "type": "nominal", "scale": None}},
        },
        {
            "name": "lines",
            "transform": flat(x, "quality"),
            "mark": {"type": "line", "clip": True, "aria": False, "invalid": "break-paths-show-path-domains"},
            "encoding": {"x": across, "y": y, **LINE},
        },
        {
            "name": "hover",
            "transform": [*flat(*unpacked, more="isValid(datum.quality)"),
                          {"calculate": f"merge(datum.about, {here})", "as": "about"}],
            "mark": {"type": "point", "filled": True, "opacity": 1, "fillOpacity": 0, "size": 60, "clip": True, "aria": False},
            "encoding": {"x": across, "y": y, "tooltip": {"field": "about"}},
        },
        {
            "name": "points",
            "transform": [{"calculate": f"peek(datum.curve['{x}'])", "as": x}, {"filter": "isValid(datum.final)"},
                          {"calculate": "datum.name + ' ends at ' + format(datum.final, '.4~g')", "as": "said"}],
            "mark": {"type": "point", "size": 55, "opacity": 1, "clip": True},
            "encoding": {"x": across, "y": {**y, "field": "final"}, **MARK, "description": {"field": "said"}},
        },
    ]  # fmt: skip
    layers.append({  # room for the last mark
        "transform": [{"calculate": f"1.03 * peek(datum.curve['{x}'])", "as": x}],
        "mark": {"type": "rule", "opacity": 0, "aria": False},
        "encoding": {"x": across},
    })  # fmt: skip
    if task["target"] is not None:
        at = {"datum": task["target"]}
        text_ = {"value": f"target {quality_text(task['target'], task)}"}
        layers += [
            {"data": {"values": [{}]}, "encoding": {"y": at},
             "mark": {"type": "rule", "style": "goal", "aria": False, "clip": True}},
            {"data": {"values": [{}]}, "encoding": {"y": at, "x": {"value": 0}, "text": text_},
             "mark": {"type": "text", "style": "small", "align": "left", "dx": 4, "dy": -6, "clip": True}},
        ]  # fmt: skip
    says = f"Lines of test {task['metric']} against {title}, one for each method."
    return {**_figure(layers, says), "params": [{"name": "whole", "value": False}]}


# ---- survey, figures 6 and 7 ----
def tradeoff(task: Mapping[str, Any], measure: str, title: str, *, text: str | None = None) -> Spec:
    """Final quality against a measure, ``throughput`` or ``sent``, with the Pareto front of one network."""
    x, y = _number(measure, title, text=text), _quality(task, "final", "final test")
    front: Spec = {
        "transform": [
            {"joinaggregate": [{"op": "distinct", "field": key, "as": f"{key}_count"} for key in ("link", "workers")]},
            {"filter": f"datum.front_{measure} && datum.link_count * datum.workers_count == 1"},
        ],
        "mark": {"type": "line", "style": "front", "clip": True, "aria": False},
        "encoding": {"x": x, "y": y},
    }  # fmt: skip
    rank = f"datum.singled ? 0 : datum.front_{measure} ? 1 : datum.baseline ? 2 : 3"
    labels: Spec = {
        "name": "labels",
        "transform": [{"filter": "datum.opacity == 1"}, {"calculate": rank, "as": "rank"}],
        "mark": {"type": "text", "style": "beside", "aria": False, "clip": True},
        "encoding": {"x": x, "y": y, "text": {"field": "name"}},
    }
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
    stack: Spec = {
        "name": "parts",
        "transform": [
            {"calculate": "datum.compute_ms", "as": parts[0]},
            {"calculate": seen, "as": parts[1]},
            {"calculate": rest, "as": parts[2]},
            {"calculate": "isValid(datum.exposed_ms) ? null : datum.exchange_ms", "as": parts[3]},
            {"fold": list(parts), "as": ["part", "ms"]},
            {"filter": "isValid(datum.ms)"},
            {"calculate": f"indexof({list(parts)}, datum.part)", "as": "order"},
            {"calculate": "datum.name + ': ' + datum.part + ' ' + format(datum.ms, '.3~g') + ' ms'", "as": "said"},
        ],
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {
            "y": y, "x": {**x, "field": "ms", "stack": "zero"}, "order": {"field": "order", "type": "quantitative"},
            "color": {"field": "part", "type": "nominal", "sort": list(parts)}, **_OPACITY, "tooltip": {"field": "about"},
            "description": {"field": "said"},
        },
    }  # fmt: skip
    limit: Spec = {
        "transform": [{"filter": "datum.reference"}],
        "mark": {"type": "rule", "style": "goal", "aria": False},
        "encoding": {"x": x},
    }
    tick: Spec = {
        "mark": {"type": "tick", "style": "measured", "thickness": 2.5, "size": 16, "aria": False},
        "encoding": {"x": x, "y": y, "tooltip": {"field": "about"}, **_OPACITY},
    }
    spread: Spec = {
        "transform": [{"filter": "isValid(datum.step_ms_low)"}],
        "mark": {"type": "rule", "style": "measured", "aria": False},
        "encoding": {"x": {**x, "field": "step_ms_low"}, "x2": {"field": "step_ms_high"}, "y": y, **_OPACITY},
    }
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
    line: Spec = {
        "name": "lines",
        "mark": {"type": "line", "aria": False},
        "encoding": {"x": x, "y": y, **LINE, "detail": detail},
    }
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
    band: Spec = {
        "transform": ends,
        "mark": {"type": "area", "style": "near", "clip": True, "aria": False},
        "encoding": {"x": {**x, "field": "at"}, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
    }
    diagonal: Spec = {
        "transform": ends,
        "mark": {"type": "line", "style": "diagonal", "clip": True, "aria": False},
        "encoding": {"x": {**x, "field": "at"}, "y": {**y, "field": "at"}},
    }
    says = f"Points of the predicted step of {task['name']} against the measured one, one for each method and network."
    return _figure([band, diagonal, *_points(x, y)], says, 440)


# ---- survey, figure 8 ----
def codecs(unit: str) -> Spec:
    """Boxes of the quartiles of codecs: rows of ``name``, ``kind`` and, for the unit ``time`` (microseconds) or ``ratio``
    (multiples of ``y.add_(x)``), its median and quartiles: ``time``, ``time_low``, ``time_high``.
    """  # fmt: skip
    title, text = {"time": ("time of one tensor", _TIME), "ratio": ("multiples of y.add_(x) of the same size", _PLAIN)}[
        unit
    ]
    cost: list[Spec] = [
        {"filter": f"datum.{unit} > 0"},
        {"joinaggregate": [{"op": "sum", "field": unit, "as": "cost"}], "groupby": ["name"]},
        {"calculate": f"datum.name + ' ' + datum.kind + ': ' + format(datum.{unit}, '.3~s')", "as": "said"},
    ]
    y: Spec = {
        "field": "name",
        "type": "nominal",
        "title": None,
        "sort": {"field": "cost", "op": "max"},
        "axis": {"grid": True},
    }
    x = _number(unit, title, text=text)
    each: Spec = {"y": y, "yOffset": {"field": "kind", "type": "nominal"}, "color": {"field": "kind", "type": "nominal"},
            "tooltip": {"field": "about"}}  # fmt: skip
    box: Spec = {
        "mark": {"type": "bar", "style": "quartiles", "aria": False},
        "encoding": {**each, "x": {**x, "field": f"{unit}_low"}, "x2": {"field": f"{unit}_high"}},
    }
    del each["color"]
    middle: Spec = {
        "name": "points",
        "mark": {"type": "tick", "style": "measured", "thickness": 2},
        "encoding": {**each, "x": x, "description": {"field": "said"}},
    }
    out = _figure(
        [box, middle], "Boxes of the time of codecs, for each method and operation.", {"step": 26, "for": "position"}
    )
    return {**out, "transform": cost}


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
