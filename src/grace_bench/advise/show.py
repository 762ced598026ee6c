"""Advice for people: a table for a terminal, and a figure."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from grace.predict.break_even import speed_text
from grace.predict.links import LEAST, MOST, Link, link
from grace_bench.advise.advice import BASELINES, Advice, AdviceRow, AdviceTable
from grace_bench.files import write_atomically
from grace_bench.report.direct_labels import Axis, axis_of, channel, height_for, lines_beside
from grace_bench.report.marks import PLAIN, SPEED
from grace_bench.report.render import check_kind, save
from grace_bench.report.theme import sign, titled
from grace_bench.survey.evidence import Evidence
from grace_command.text import amount, number, plain_table

_DRAWN = 9  # methods in a panel, baselines not counted: more lines cannot be told apart
_POINTS = 49
KINDS = (".svg", ".html")  # of a figure's file
_WIDTH, _HEIGHT = 430, 320  # pixels of a panel
_LETTER, _LINE = 6.5, 13  # pixels: the width of a letter, the height of a line
_KINDS = {"its codec": "codec too slow", "sends": "too many bytes", "the link": "little to save"}  # how reasons begin


def view(advice: Advice) -> RenderableType:
    """All tables, and notes on how to read them."""
    measured = "measured here" if advice.measured else "as given"
    where = f"{advice.cores:g} cores" if advice.device == "cpu" else advice.device
    head = (
        f"{advice.model}: {advice.parameters:,} parameters in {len(advice.buckets)} buckets; a step without communication "
        f"{advice.step_ms:.3g} ms ({measured}), {where} for each worker"
    )
    note = (
        f"Predicted, not measured: {advice.note or 'codecs were timed here, on a processor, in ms'}; the network is the link "
        "model's. Shown: "
        "what pays, and the baselines; --json has all. Pays below: the link speed below which it beats the better of fp32 and "
        "bf16. Learns: what the survey's runs say, with the task where it did worst beside fp32; runs: seeds there, of all. "
        "Steps: times bf16's to its quality, at most."
    )
    return Group(Text(head, style="bold"), *(_table(table) for table in advice.tables), Text(note, style="dim"))


def _table(table: AdviceTable) -> RenderableType:
    title = f"\n{table.workers} workers, {table.link}"
    headings = (
        "method",
        "step ms",
        "x bf16",
        "sent",
        "codec",
        "pays below",
        "learns",
        "at worst (fp32)",
        "runs",
        "steps",
    )
    lines = plain_table(title, headings, left=1)
    lines.columns[0].overflow = "fold"
    shown = [row for row in table.rows if row.pays or row.method in BASELINES]
    for row in shown:
        lines.add_row(*_cells(row), style="bold" if row.method == table.best else "")
    others = [row for row in table.rows if row not in shown]
    needs = [f"{row.method} needs {row.needs.optimizer}" for row in shown if row.needs.optimizer]
    notes = [Text(text, style="dim") for text in (_why_not(others) if others else "", "; ".join(needs)) if text]
    return Group(lines, Text(table.verdict, style="green" if table.best else "yellow"), *notes)


def _why_not(rows: Sequence[AdviceRow]) -> str:
    """Methods that do not pay, by what decides."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        kind = next((kind for start, kind in _KINDS.items() if row.reason.startswith(start)), row.reason)
        by_reason.setdefault(kind, []).append(row.method)
    return "do not pay here: " + "; ".join(f"{kind}: {', '.join(names)}" for kind, names in by_reason.items())


def _cells(row: AdviceRow) -> list[str]:
    start = [row.method, number(row.step_ms), f"{row.over_bf16:.2f}", amount(row.sent_bytes), number(row.codec_ms)]
    if row.method in BASELINES:
        return [*start, "", "", "", "", ""]
    steps = "?" if row.steps is None else f"{row.steps:.3g}"
    return [*start, speed_text(row.break_even_bits_per_second), *_quality(row.quality), steps]


def _quality(evidence: Evidence | None) -> tuple[str, str, str]:
    """True if it learns less, where it did worst, and of how many runs that is known."""
    if evidence is None:
        return "?", "not measured", "0"
    value = (
        "diverged" if evidence.value is None else f"{evidence.value:{',.0f' if abs(evidence.value) >= 1000 else '.3g'}}"
    )
    return evidence.verdict, f"{evidence.task} {value} ({evidence.fp32:.3g})", f"{evidence.seeds}/{evidence.runs}"


def draw(advice: Advice, seconds: Callable[[str, Link, int], float], out: Path) -> list[Path]:
    """Writes the step over all links, a panel for each number of workers, as ``out``: .svg (and .png beside it) or .html.

    Raises:
        ConfigurationError: another kind of file.
        MissingExtraError: vl-convert is not installed.
        OSError: it cannot be written.
    """
    check_kind(out, *KINDS)
    written = save(sheet(advice, seconds), out.parent, out.stem)
    if out.suffix == ".svg":
        return written
    text = written[0].read_text(encoding="utf-8")
    title = html.escape(f"Which method for {advice.model}")
    page = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n<body>{text}\n'
    rows = "".join(
        f"<h2>{table.workers} workers, {html.escape(table.link)}</h2>\n<p>{html.escape(table.verdict)}</p>\n"
        for table in advice.tables
    )
    write_atomically(out, f"{page}{rows}</body></html>\n")
    return [out, *written]


def sheet(advice: Advice, seconds: Callable[[str, Link, int], float]) -> dict[str, Any]:
    """The figure as a Vega-Lite document."""
    title = f"{advice.model}: predicted step over links"
    says = (
        f"{advice.parameters:,} parameters; predicted, not measured; dashed: the links asked about; drawn: none, bf16, "
        f"what is advised, and others with the best ranks, {_DRAWN} in all"
    )
    worlds = list(dict.fromkeys(table.workers for table in advice.tables))
    return titled(title, says, {"concat": [_panel(advice, seconds, world) for world in worlds], "columns": 2})


def _panel(advice: Advice, seconds: Callable[[str, Link, int], float], world: int) -> dict[str, Any]:
    tables = [table for table in advice.tables if table.workers == world]
    methods = _choose_drawn(tables)
    rates = [LEAST * 10 * (MOST / LEAST / 10) ** (k / (_POINTS - 1)) for k in range(_POINTS)]
    names = [*BASELINES, *methods]
    order = list(
        dict.fromkeys(row.method for table in advice.tables for row in table.rows if row.method not in BASELINES)
    )
    signs = {name: sign(k, baseline=True) for k, name in enumerate(BASELINES)}
    signs |= {name: sign(k) for k, name in enumerate(order)}  # the same in every panel
    times = {name: [1000 * seconds(name, Link("", rate), world) for rate in rates] for name in names}
    height = height_for(len(names), _HEIGHT)
    across = Axis(rates[0], rates[-1], _WIDTH, 0)
    up = axis_of([advice.step_ms, *(ms for column in times.values() for ms in column)], height, {"type": "log"})
    x = channel("rate", "link", across, SPEED, [1e7, 1e8, 1e9, 1e10, 1e11])
    y = channel("ms", "milliseconds of a step (log)", up, PLAIN)
    curves = {name: (signs[name], list(zip(rates, times[name], strict=True))) for name in names}
    line, beside = lines_beside(curves, x, y, across, up)
    asked = _label_links(tables, across)
    limit = {"values": [{"ms": advice.step_ms, "name": f"no communication: {advice.step_ms:.3g} ms"}]}
    return {
        "title": f"{world} workers", "width": _WIDTH, "height": height,
        "layer": [
            line,
            {"data": {"values": asked}, "mark": {"type": "rule", "style": "goal"}, "encoding": {"x": x}},
            {"data": {"values": asked}, "mark": {"type": "text", "style": "small", "align": "left", "dx": 4, "dy": 10},
             "encoding": {"x": x, "y": {"field": "y", "type": "quantitative", "scale": None}, "text": {"field": "name"}}},
            {"data": limit, "mark": {"type": "rule", "style": "diagonal"}, "encoding": {"y": y}},
            {"data": limit, "mark": {"type": "text", "style": "small", "align": "left", "dx": 4, "dy": 9},
             "encoding": {"x": {"value": 0}, "y": y, "text": {"field": "name"}}},
            *beside,
        ],
    }  # fmt: skip


def _choose_drawn(tables: Sequence[AdviceTable]) -> list[str]:
    """The methods of a panel, baselines not counted: what these tables advise, then the fastest of each, what is close to
    what is advised, and others by their best ranks.
    """
    ranked = sorted(
        (row for table in tables for row in table.rows if row.method not in BASELINES), key=lambda row: row.rank
    )
    wanted = [
        *(table.best for table in tables),
        *(table.fastest for table in tables),
        *(name for table in tables for name in table.close),
    ]
    names = [name for name in wanted if name is not None and name not in BASELINES]
    return list(dict.fromkeys([*names, *(row.method for row in ranked)]))[:_DRAWN]


def _label_links(tables: Sequence[AdviceTable], across: Axis) -> list[dict[str, Any]]:
    """The links asked about, those of one speed together, each name lower than those that it would run into."""
    names: dict[float, list[str]] = {}
    for table in tables:
        rate = link(table.link.partition("+")[0]).bits_per_second
        if rate is not None:
            names.setdefault(rate, []).append(table.link)
    ends: list[float] = []  # of the names in each line, in pixels
    labels = []
    for rate, of in sorted(names.items()):
        start, name = _WIDTH * across.part(rate), ", ".join(dict.fromkeys(of))
        row = next((row for row, end in enumerate(ends) if end <= start), len(ends))
        ends[row : row + 1] = [start + _LETTER * len(name) + 8]
        labels.append({"rate": rate, "name": name, "y": _LINE * row})
    return labels
