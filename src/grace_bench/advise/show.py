"""Advice for people: a table for a terminal, and a figure."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from grace.errors import ConfigurationError
from grace_bench.advise.advice import BASELINES, Advice, Row, Table
from grace_bench.network.break_even import speed_text
from grace_bench.network.links import LEAST, MOST, Link, link
from grace_bench.report.beside import Axis, axis_of, beside_ends, height_for
from grace_bench.report.marks import LINE, SPEED, tick_values
from grace_bench.report.render import save
from grace_bench.report.tables import amount, number, plain_table
from grace_bench.report.theme import config, sign
from grace_bench.scratch import write_atomically

_DRAWN = 9  # methods in a panel, baselines not counted: more lines cannot be told apart
_POINTS = 49
_WIDTH, _HEIGHT = 430, 320  # pixels of a panel


def view(advice: Advice) -> RenderableType:
    """All tables, and notes on how to read them."""
    measured = "measured here" if advice.measured else "as given"
    head = (
        f"{advice.model}: {advice.parameters:,} parameters in {len(advice.buckets)} buckets; a step without communication "
        f"{advice.step_ms:.3g} ms ({measured}), {advice.cores:g} cores for each worker"
    )
    note = (
        "Predicted, not measured: codecs were timed here, on a processor; the network is the link model's. Faster below: the "
        "link speed below which it beats the better of fp32 and bf16. Quality: what the suite knows; -: not measured."
    )
    return Group(Text(head, style="bold"), *(_table(one) for one in advice.tables), Text(note, style="dim"))


def _table(table: Table) -> RenderableType:
    title = f"\n{table.workers} workers, {table.link}"
    headings = ("method", "why", "step ms", "x fp32", "x bf16", "sent / step", "codec ms", "faster below", "quality")
    lines = plain_table(title, headings, left=2)
    for row in table.rows:
        style = "" if row.pays or row.method in BASELINES else "dim"
        lines.add_row(*_cells(row), style=style)
    return Group(lines, Text(table.verdict, style="green" if table.best else "yellow"))


def _cells(row: Row) -> list[str]:
    known = row.quality
    return [
        row.method, row.reason, number(row.step_ms), f"{row.over_fp32:.2f}", f"{row.over_bf16:.2f}", amount(row.sent_bytes),
        number(row.codec_ms), "" if row.method in BASELINES else speed_text(row.break_even_bits_per_second),
        "-" if known is None else f"{known.value:g} (fp32 {known.fp32:g})",
    ]  # fmt: skip


def draw(advice: Advice, seconds: Callable[[str, Link, int], float], out: Path) -> list[Path]:
    """Writes the step over all links, a panel for each number of workers, as ``out``: .svg (and .png beside it) or .html.

    Raises:
        ConfigurationError: another kind of file.
        MissingExtraError: vl-convert is not installed.
        OSError: it cannot be written.
    """
    check_kind(out)
    written = save(sheet(advice, seconds), out.parent, out.stem)
    if out.suffix == ".svg":
        return written
    text = written[0].read_text(encoding="utf-8")
    title = html.escape(f"Which method for {advice.model}")
    page = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n<body>{text}\n'
    rows = "".join(
        f"<h2>{one.workers} workers, {html.escape(one.link)}</h2>\n<p>{html.escape(one.verdict)}</p>\n"
        for one in advice.tables
    )
    write_atomically(out, f"{page}{rows}</body></html>\n")
    return [out, *written]


def check_kind(out: Path) -> None:
    """Checks the name of a figure's file.

    Raises:
        ConfigurationError: it is none.
    """
    if out.suffix not in (".svg", ".html"):
        raise ConfigurationError(f"--out {str(out)!r} is no figure; legal: a file name that ends in .svg or .html")


def sheet(advice: Advice, seconds: Callable[[str, Link, int], float]) -> dict[str, Any]:
    """The figure as a Vega-Lite document."""
    title = f"{advice.model}: predicted step over links"
    says = (
        f"{advice.parameters:,} parameters; predicted, not measured; dashed: the links asked about; drawn: none, bf16 "
        f"and the {_DRAWN} others with the best ranks"
    )
    worlds = list(dict.fromkeys(one.workers for one in advice.tables))
    return {
        "title": {"text": title, "subtitle": says, "fontSize": 15},
        "description": f"{title}. {says}",
        "concat": [_panel(advice, seconds, world) for world in worlds],
        "columns": 2, "padding": 14, "config": config("light"),
    }  # fmt: skip


def _panel(advice: Advice, seconds: Callable[[str, Link, int], float], world: int) -> dict[str, Any]:
    tables = [one for one in advice.tables if one.workers == world]
    best: dict[str, int] = {}
    for table in tables:
        for row in table.rows:
            best[row.method] = min(best.get(row.method, row.rank), row.rank)
    methods = sorted((name for name in best if name not in BASELINES), key=lambda name: best[name])[:_DRAWN]
    rates = [LEAST * 10 * (MOST / LEAST / 10) ** (k / (_POINTS - 1)) for k in range(_POINTS)]
    names = [*BASELINES, *methods]
    order = list(
        dict.fromkeys(row.method for table in advice.tables for row in table.rows if row.method not in BASELINES)
    )
    signs = {name: sign(k, baseline=True) for k, name in enumerate(BASELINES)}
    signs |= {name: sign(k) for k, name in enumerate(order)}  # the same in every panel
    times = {name: [1000 * seconds(name, Link("", rate), world) for rate in rates] for name in names}
    looks = {name: {"name": name, "opacity": 1, **signs[name].shape, **signs[name].paint("light")} for name in names}
    rows = [
        {"rate": rate, "ms": ms, **{key: look for key, look in looks[name].items() if key != "shape"}}
        for name in names for rate, ms in zip(rates, times[name], strict=True)
    ]  # fmt: skip
    height = height_for(len(names), _HEIGHT)
    across = Axis(rates[0], rates[-1], _WIDTH, 0)
    up = axis_of([advice.step_ms, *(ms for column in times.values() for ms in column)], height, {"type": "log"})
    x = {
        "field": "rate", "type": "quantitative", "title": "link", "scale": across.scale,
        "axis": {"labelExpr": SPEED, "values": [1e7, 1e8, 1e9, 1e10, 1e11]},
    }  # fmt: skip
    y = {
        "field": "ms", "type": "quantitative", "title": "milliseconds of a step (log)", "scale": up.scale,
        "axis": {"labelExpr": "format(datum.value, ',~g')", "values": tick_values(1, 2, 5), "labelOverlap": "greedy"},
    }  # fmt: skip
    line = {**LINE, "detail": [{"field": "name"}]}
    ends = [(_WIDTH, height * (1 - up.part(times[name][-1])), looks[name]) for name in names]
    asked = [{"rate": link(one.link.partition("+")[0]).bits_per_second, "name": one.link} for one in tables]
    limit = {"values": [{"ms": advice.step_ms, "name": f"no communication: {advice.step_ms:.3g} ms"}]}
    known = {"x": {**x, "field": "rate"}}
    return {
        "title": f"{world} workers", "width": _WIDTH, "height": height,
        "layer": [
            {"data": {"values": rows}, "mark": {"type": "line"}, "encoding": {"x": x, "y": y, **line}},
            {"data": {"values": asked}, "mark": {"type": "rule", "style": "goal"}, "encoding": known},
            {"data": {"values": asked}, "mark": {"type": "text", "style": "small", "align": "left", "dx": 4, "dy": 10},
             "encoding": {**known, "y": {"value": 0}, "text": {"field": "name"}}},
            {"data": limit, "mark": {"type": "rule", "style": "diagonal"}, "encoding": {"y": y}},
            {"data": limit, "mark": {"type": "text", "style": "small", "align": "left", "dx": 4, "dy": -7},
             "encoding": {"x": {"value": 0}, "y": y, "text": {"field": "name"}}},
            *beside_ends(ends, _WIDTH, height),
        ],
    }  # fmt: skip
