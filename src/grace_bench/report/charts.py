"""The figures, each described once: Vega-Lite documents without data, for the page and for files.

The dataset ``rows`` has those of :mod:`grace_bench.report.contents`, with the look of their method (``stroke``, ``fill``,
``shape``, ``dash``, ``width``), an ``opacity``, a ``name``, and in the page what a pointer is told (``about``). A measure
is a field ``NAME``; ``NAME_low`` and ``NAME_high`` are its range over seeds, where there is one. Colors and fonts are those
of :mod:`grace_bench.report.theme`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grace_bench.report.marks import (
    BYTES,
    LINE,
    MARK,
    OPACITY,
    PLAIN,
    TIME,
    Spec,
    figure,
    layer,
    number,
    points,
    quality,
    quality_text,
)

MILLISECONDS = "format(datum.step_ms, datum.step_ms < 99.5 ? '.3~g' : ',.0f') + ' ms'"
_PLACE = ("link", "workers", "toolkit")  # where methods compete
NEAR = 0.15  # of a measured step: a prediction within it is a good one
ON_PAGE_ONLY = {"hover", "labels", "room"}  # layers: what a pointer finds, names that Vega places, room for them


# ---- survey, figure 1 ----
def curves(task: Mapping[str, Any], x: str, title: str, *, text: str | None = None, clock: bool = True) -> Spec:
    """Quality over a run. The axis has all data; without the signal ``whole`` of the page, only where methods end.

    Args:
        task: ``metric``, ``higher``, ``share``, ``target``, and ``ways``, see :func:`stretch`.
        x: epoch, seconds, or sent.
        title: of the x axis.
        text: how ticks are written, if it is logarithmic.
        clock: whether a pointer is told the seconds.
    """
    ends = "extent(pluck(data('rows'), 'final_low'))", "extent(pluck(data('rows'), 'final_high'))"
    least, most = f"min({ends[0]}[0], {ends[1]}[0])", f"max({ends[0]}[1], {ends[1]}[1])"
    span = f"max({most} - {least}, 0.02 * abs({most}), 1e-9)"
    below, above = (0.45, 0.14) if task["higher"] else (0.14, 0.45)
    floor, none = f"{least} - {below} * {span}", f"whole || !isValid({least})"  # as when all have diverged
    scale = {
        "domainMin": {"expr": f"{none} ? null : {f'max({floor}, 0)' if task['share'] else floor}"},
        "domainMax": {"expr": f"{none} ? null : {most} + {above} * {span}"},
        "padding": 8,
    }
    y = quality(task, "quality", "", task["ways"], scale=scale)
    across = number(x, title, text=text, zero=True, scale={"nice": False})
    unpacked = [x, "epoch", "seconds", "quality"] if x not in ("epoch", "seconds") else ["epoch", "seconds", "quality"]

    def flat(*names: str, more: str = "true") -> list[Spec]:
        kept = more + (f" && datum.{x} > 0" if text else "")
        return [{"flatten": [f"curve.{name}" for name in names], "as": list(names)}, {"filter": kept}]

    form = ".1%" if task["share"] else ".4~g"
    here = f"{{'here': format(datum.quality, '{form}'), 'epoch': format(datum.epoch, '.3~g'), " + (
        "'seconds': format(datum.seconds, '.3~s')}" if clock else "}"
    )
    last = {"calculate": f"peek(datum.curve['{x}'])", "as": x}
    low, high = {**y, "field": "low"}, {"field": "high"}
    fill = {"field": "stroke", "type": "nominal", "scale": None}
    layers = [
        layer("area", {"x": across, "y": low, "y2": high, "detail": LINE["detail"], "fill": fill},
               {"filter": "isValid(datum.curve.low) && datum.opacity == 1"},
               *flat(x, "low", "high", more="isValid(datum.low) && isValid(datum.high)"), style="seeds"),
        layer("line", {"x": across, "y": y, **LINE}, *flat(x, "quality"), invalid="break-paths-show-path-domains"),
        layer("point", {"x": across, "y": y, "tooltip": {"field": "about"}}, *flat(*unpacked, more="isValid(datum.quality)"),
               {"calculate": f"merge(datum.about, {here})", "as": "about"},
               name="hover", filled=True, opacity=1, fillOpacity=0, size=60),
        layer("point", {"x": across, "y": {**y, "field": "final"}, **MARK}, last, {"filter": "isValid(datum.final)"},
               name="points", description="datum.name + ' ends at ' + format(datum.final, '.4~g')", size=55, opacity=1),
        layer("text", {"x": across, "y": {**y, "field": "final"}, "text": {"field": "name"}}, last,
               {"filter": "isValid(datum.final) && datum.opacity == 1"},
               {"calculate": "datum.singled ? 0 : datum.fp32 ? 1 : 2", "as": "rank"}, name="labels", style="beside"),
        layer("rule", {"x": across}, last, {"calculate": f"1.2 * datum.{x}", "as": x}, name="room", opacity=0),
    ]  # fmt: skip
    if task["target"] is not None:
        at = {"y": {"datum": task["target"]}}
        words = {"x": {"value": 0}, "text": {"value": f"target {quality_text(task['target'], task)}"}}
        layers.append(layer("rule", at, values=[{}], style="goal"))
        layers.append(layer("text", {**at, **words}, values=[{}], style="small", align="left", dx=4, dy=-6))
    says = f"Lines of test {task['metric']} against {title}, one for each method."
    return {**figure(layers, says), "params": [{"name": "whole", "value": True}]}


def _over_time(task: Mapping[str, Any], title: str) -> Spec:
    return curves(task, "seconds", title + task["durations"] * " (log)", text=PLAIN if task["durations"] else None)


# ---- survey, figures 6 and 7 ----
def tradeoff(task: Mapping[str, Any], measure: str, title: str, *, text: str | None = None) -> Spec:
    """Final quality against a measure, ``throughput`` or ``sent``, with the Pareto front of one network."""
    plain = None if measure != "throughput" or not task["speeds"] else PLAIN
    x, y = number(measure, title, text=text or plain), quality(task, "final", " at the last evaluation", task["ends"])
    front = layer(
        "line", {"x": x, "y": y},
        {"joinaggregate": [{"op": "distinct", "field": key, "as": f"{key}_count"} for key in _PLACE]},
        {"filter": f"datum.front_{measure} && {' * '.join(f'datum.{key}_count' for key in _PLACE)} == 1"}, style="front",
    )  # fmt: skip
    rank = {"calculate": f"datum.singled ? 0 : datum.front_{measure} ? 1 : datum.baseline ? 2 : 3", "as": "rank"}
    shown = {"filter": "datum.opacity == 1"}
    labels = layer("text", {"x": x, "y": y, "text": {"field": "name"}}, shown, rank, name="labels", style="beside")
    says = f"Points of final test {task['metric']} against {title}, one for each method."
    return figure([front, *points(x, y), labels], says, 440)


# ---- the time of a step ----
def step_time(task: Mapping[str, Any]) -> Spec:
    """Bars of the parts of a step. Exposed communication contains the codec's time, of which some may hide behind the backward
    pass: parts add up to the step. Where one outlier would flatten the others the axis is logarithmic, on which parts have
    no length: then lines from compute to the step.
    """  # fmt: skip
    parts = ("compute", "codec", "other exposed communication", "exchange")
    y = {"field": "name", "type": "nominal", "title": None, "sort": {"field": "step_ms", "op": "max"}}
    log = task["steps"]
    x = number("step_ms", "milliseconds of a step" + log * " (log)", **({"text": PLAIN} if log else {"zero": True}))
    told = {"tooltip": {"field": "about"}, **OPACITY}
    seen = "isValid(datum.exposed_ms) ? min(datum.codec_ms || 0, datum.exposed_ms) : datum.codec_ms"
    others = "isValid(datum.exposed_ms) ? datum.exposed_ms - datum.codec : null"
    color = {"field": "part", "type": "nominal", "sort": list(parts), "legend": {"offset": _ROOM}}
    if log:
        ends = {"y": y, "x": {**x, "field": "compute_ms"}, "x2": {"field": "step_ms"}, **told}
        bars = [layer("rule", ends, style="exposed", strokeWidth=9), layer(
            "tick", {"y": y, "x": {**x, "field": "compute_ms"}, **told}, name="points", style="measured",
            description="datum.name + ': compute ' + format(datum.compute_ms, '.3~g')"
            " + ' ms of ' + format(datum.step_ms, '.3~g')",
        )]  # fmt: skip
    else:
        bars = [layer(
            "bar", {"y": y, "x": {**x, "field": "ms", "stack": "zero"}, "color": color,
                    "order": {"field": "order", "type": "quantitative"}, **told},
            {"calculate": "datum.compute_ms", "as": parts[0]}, {"calculate": seen, "as": parts[1]},
            {"calculate": others, "as": parts[2]},
            {"calculate": "isValid(datum.exposed_ms) ? null : datum.exchange_ms", "as": parts[3]},
            {"fold": list(parts), "as": ["part", "ms"]}, {"filter": "isValid(datum.ms)"},
            {"calculate": f"indexof({list(parts)}, datum.part)", "as": "order"},
            name="parts", description="datum.name + ': ' + datum.part + ' ' + format(datum.ms, '.3~g') + ' ms'",
            height={"band": 0.7},
        )]  # fmt: skip
    tick = layer("tick", {"x": x, "y": y, **told}, style="measured", thickness=2.5, size=16)
    spread = layer(
        "rule", {"x": {**x, "field": "step_ms_low"}, "x2": {"field": "step_ms_high"}, "y": y, **OPACITY},
        {"filter": "isValid(datum.step_ms_low)"}, style="measured",
    )  # fmt: skip
    says = f"Bars of the milliseconds of a step of {task['name']}, one for each method, in their parts."
    return figure([*bars, *reference_lines(x), spread, tick, *end_labels(x, y)], says, {"step": 24})


_ROOM = 40  # pixels above bars, for the names of lines


def end_labels(x: Spec, y: Spec) -> list[Spec]:
    """The numbers at the ends of bars, on the ground, so that lines do not cross them."""
    text = {"x": {**x, "field": "end"}, "y": y, "text": {"field": "told"}, **OPACITY}
    return [layer(
        "text", dict(text),
        {"calculate": "isValid(datum.step_ms_high) ? datum.step_ms_high : datum.step_ms", "as": "end"},
        {"calculate": MILLISECONDS, "as": "told"},
        style=style, align="left", dx=6, clip=False,
    ) for style in ("ground", "beside")]  # fmt: skip


def reference_lines(x: Spec) -> list[Spec]:
    """Lines down the bars, with their names above them: fp32, bf16, and without communication."""
    sign = {key: LINE[key] for key in ("stroke", "strokeDash")}
    kept = {"filter": "isValid(datum.line)"}
    count = {"window": [{"op": "row_number", "as": "nth"}], "sort": [{"field": "step_ms"}]}
    words = {
        "x": x,
        "y": {"value": 0},
        "text": {"field": "line"},
        "color": {"field": "stroke", "type": "nominal", "scale": None},
    }
    return [
        layer("rule", {"x": x, **sign}, kept, strokeWidth=1.4),
        layer(
            "text", words, kept, count, align="left", dx=2, dy={"expr": "-5 - 12 * ((datum.nth - 1) % 3)"}, clip=False
        ),
    ]


# ---- survey, figures 9 and 10 ----
def links(task: Mapping[str, Any]) -> Spec:
    """Throughput over every network, from slow to fast."""
    x: Spec = {
        "field": "network", "type": "ordinal", "title": "link, slow to fast", "sort": {"field": "link", "op": "min"},
        "axis": {"labelAngle": 0, "grid": True},
    }  # fmt: skip
    y = number(
        "throughput", "samples per second, all workers", **({"text": PLAIN} if task["speeds"] else {"zero": True})
    )
    detail = [{"field": "label"}, {"field": "workers"}, {"field": "toolkit"}]
    line = layer("line", {"x": x, "y": y, **LINE, "detail": detail})
    says = f"Lines of samples per second of {task['name']} against the link, one for each method."
    return figure([line, *points(x, y, ranges="y", size=60)], says, 440)


# ---- the link model ----
def prediction(task: Mapping[str, Any]) -> Spec:
    """The predicted step against the measured one, with the diagonal and 15 % around it."""
    x, y = (
        number(f"{name}_ms", f"{word} step, ms", text=PLAIN)
        for name, word in (("step", "measured"), ("predicted", "predicted"))
    )
    ends: list[Spec] = [
        {"fold": ["step_ms", "predicted_ms"], "as": ["which", "ms"]},
        {"aggregate": [{"op": "min", "field": "ms", "as": "from"}, {"op": "max", "field": "ms", "as": "to"}]},
        {"fold": ["from", "to"], "as": ["end", "at"]},
        {"calculate": f"{1 - NEAR} * datum.at", "as": "low"},
        {"calculate": f"{1 + NEAR} * datum.at", "as": "high"},
    ]
    across = {**x, "field": "at"}
    band = layer("area", {"x": across, "y": {**y, "field": "low"}, "y2": {"field": "high"}}, *ends, style="near")
    diagonal = layer("line", {"x": across, "y": {**y, "field": "at"}}, *ends, style="diagonal")
    says = f"Points of the predicted step of {task['name']} against the measured one, one for each method and network."
    return figure([band, diagonal, *points(x, y)], says, 440)


# ---- survey, figure 8 ----
def codecs(unit: str) -> Spec:
    """Boxes of the quartiles of codecs: rows of ``name``, ``kind`` and, for the unit ``time`` (microseconds) or ``ratio``
    (multiples of ``y.add_(x)``), its median and quartiles: ``time``, ``time_low``, ``time_high``.
    """  # fmt: skip
    names = {"time": ("time of one tensor", TIME), "ratio": ("multiples of y.add_(x) of the same size", PLAIN)}
    title, text = names[unit]
    cost: list[Spec] = [
        {"filter": f"datum.{unit} > 0"},
        {"joinaggregate": [{"op": "sum", "field": unit, "as": "cost"}], "groupby": ["name"]},
    ]
    y: Spec = {"field": "name", "type": "nominal", "title": None, "sort": {"field": "cost", "op": "max"}}
    x, kind = number(unit, title, text=text), {"field": "kind", "type": "nominal"}
    each: Spec = {"y": {**y, "axis": {"grid": True}}, "yOffset": kind, "color": kind, "tooltip": {"field": "about"}}
    ends = {"x": {**x, "field": f"{unit}_low"}, "x2": {"field": f"{unit}_high"}}
    description = f"datum.name + ' ' + datum.kind + ': ' + format(datum.{unit}, '.3~s')"
    box = layer("bar", {**each, **ends}, style="quartiles")
    middle = layer("tick", {**each, "x": x}, name="points", description=description, opacity=1, thickness=3)
    says = "Boxes of the time of codecs, for each method and operation."
    return {**figure([box, middle], says, {"step": 26, "for": "position"}), "transform": cost}


def of_task(task: Mapping[str, Any]) -> dict[str, list[Spec]]:
    """The figures of a task, by name; figure 1 is two plots."""
    return {
        "quality-epoch-time": [curves(task, "epoch", "epochs"), _over_time(task, "seconds of training")],
        "quality-throughput": [tradeoff(task, "throughput", "samples per second, all workers")],
        "quality-bytes": [tradeoff(task, "sent", "bytes sent by each worker and step", text=BYTES)],
        "step-time": [step_time(task)],
        "links": [links(task)],
        "prediction": [prediction(task)],
    }


def of_comparison(task: Mapping[str, Any], links: Sequence[str]) -> dict[str, Spec]:
    """Charts of the cost of quality, by title: in seconds over each of these links, in bytes, and, without links, in epochs
    and in seconds here. ``curve`` of a row holds the seconds under the link's name.
    """
    over = {f"over {link}": curves(task, link, "seconds of training, predicted") for link in links}
    sent = {"per byte sent": curves(task, "sent", "bytes sent by each worker, so far", text=BYTES)}
    if links:
        return {**over, **sent}
    here = {"per second here": _over_time(task, "seconds of training, so far")}
    return {"per epoch": curves(task, "epoch", "epochs"), **sent, **here}
