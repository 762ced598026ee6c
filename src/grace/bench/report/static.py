"""The report's figures as files: for each task one SVG and one PNG of each, with a panel for every network."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.bench.extras import need
from grace.bench.report.contents import Network, Report, is_share, network, network_name, networks
from grace.bench.report.groups import Group, Spread
from grace.bench.report.style import COLOURS, FAINT, MARKERS, MUTED, RC, Sign
from grace.bench.report.tables import amount
from grace.bench.scratch import write_atomically

_COLUMNS = 4  # panels in a row
Panel = tuple[Network, int]  # a network and a number of workers


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What the panels of one figure need."""

    report: Report
    task: str
    groups: list[Group]
    panels: list[Panel]

    def of(self, panel: Panel) -> list[Group]:
        return [g for g in self.groups if (network(g.first), g.first.workers) == panel]

    def sign(self, group: Group) -> Sign:
        return self.report.signs[group.first.method]

    def title(self, panel: Panel) -> str:
        parts = [network_name(panel[0], networks(self.groups))]
        if len({workers for _, workers in self.panels}) > 1:
            parts.append(f"{panel[1]} workers")
        return ", ".join(parts)

    @property
    def metric(self) -> str:
        first = self.groups[0].first
        return f"test {first.metric}" + ("" if first.higher else ", lower is better")

    def point(self, axis: Any, group: Group, x: Spread, y: Spread) -> None:
        """A marker at the medians, and bars to the ends of the ranges."""
        if x.median is None or y.median is None:
            return
        sign = self.sign(group)
        colour = sign.line["color"]
        errors = [[[abs(middle - (middle if end is None else end))] for end in (value.low, value.high)]
                  for value, middle in ((x, x.median), (y, y.median))]  # fmt: skip
        axis.errorbar(
            x.median, y.median, xerr=errors[0], yerr=errors[1], marker=MARKERS[sign.marker], color=colour, markersize=7,
            markerfacecolor="white" if sign.colour < 0 else colour, elinewidth=0.8, linestyle="none", zorder=4,
        )  # fmt: skip


def draw_report(report: Report, out: Path) -> list[Path]:
    """Writes the report's figures into ``out``: ``<task>-<figure>.svg`` and ``.png``, and ``codec-latency``.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    need("matplotlib", extra="report")
    from matplotlib import rc_context

    names = {figure.name for figure in report.figures}
    written: list[Path] = []
    with rc_context(RC):
        for task in report.tasks:
            groups = [group for group in report.groups if group.first.task == task]
            order = networks(groups)
            panels = sorted(
                {(network(g.first), g.first.workers) for g in groups}, key=lambda p: (order.index(p[0]), p[1])
            )
            sheet = _Sheet(report, task, groups, panels)
            for name, (compose, fits) in _FIGURES.items():
                if name in names and any(fits(group) for group in groups) and (name != "links" or len(order) > 1):
                    written += _save(compose(sheet), out, f"{task}-{name}")
        if "codec-latency" in names:
            written += _save(_codecs(report), out, "codec-latency")
    return written


def _save(figure: Any, out: Path, name: str) -> list[Path]:
    paths = []
    for kind in ("svg", "png"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
        path = out / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}.{kind}"
        write_atomically(path, buffer.getvalue())
        paths.append(path)
    return paths


def _figure(count: int, *, width: float = 4.4, height: float = 3.7, columns: int = _COLUMNS) -> tuple[Any, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(count, columns)
    down = -(-count // across)
    figure = Figure(figsize=(max(across * width, 6.0), down * height + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    for axis in axes[:count]:
        axis.grid(color=FAINT, linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def _finish(sheet: _Sheet, figure: Any, title: str, groups: Sequence[Group]) -> Any:
    """Title, what the reader must know, and one legend for all panels."""
    from matplotlib.lines import Line2D

    first = sheet.groups[0].first
    notes = [f"{first.workers} workers"] if len({workers for _, workers in sheet.panels}) == 1 else []
    seeds = {len(group.runs) for group in groups}
    notes.append(
        "one run each" if seeds == {1} else f"medians and ranges over {' or '.join(map(str, sorted(seeds)))} seeds"
    )
    figure.suptitle(f"{sheet.task}: {title}\n{', '.join(notes)}", x=0.01, ha="left", fontsize=11)
    _mark_procedural(figure, groups)
    shown = {group.first.method: sheet.sign(group) for group in groups}
    handles = [
        Line2D([], [], marker=MARKERS[sign.marker], markersize=6, label=_plain(name),
               markerfacecolor="white" if sign.colour < 0 else sign.line["color"], **sign.line)
        for name, sign in sheet.report.signs.items() if name in shown for sign in [shown[name]]
    ]  # fmt: skip
    width = figure.get_size_inches()[0]
    figure.legend(handles=handles, loc="outside lower left", ncols=max(2, int(width / 2.1)), frameon=False, fontsize=8,
                  handlelength=3.2)  # fmt: skip
    return figure


def _mark_procedural(figure: Any, groups: Sequence[Group]) -> None:
    data = sorted({group.first.data for group in groups if group.first.procedural})
    if data:
        text = f"procedural data: {', '.join(data)}".rstrip(": ")
        figure.text(0.995, 0.995, _plain(text), ha="right", va="top", size=8.5, color="#6b5200")


def _plain(text: str) -> str:
    """Without what matplotlib would read as mathematics, or as a label to leave out."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _quality_axis(axis: Any, sheet: _Sheet, ends: Sequence[float], *, pad: float) -> None:
    from matplotlib.ticker import FuncFormatter

    first = sheet.groups[0].first
    if ends:
        least, most = min(ends), max(ends)
        span = max(most - least, 0.02 * abs(most), 1e-9)
        low, high = (pad, 0.12) if first.higher else (0.12, pad)
        axis.set_ylim(least - low * span, most + high * span)
    if is_share(first.metric):
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def _log(axis: Any, text: Callable[[float], str]) -> None:
    """A logarithmic axis (``axis.xaxis`` or ``axis.yaxis``) with ticks at 1, 2 and 5 where there is room, in words."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    set_scale("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(
        LogLocator(base=10, subs=(1.0,) if high > 200 * low else (1.0, 3.0) if high > 30 * low else (1.0, 2.0, 5.0))
    )
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _time(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:g} {unit}"
    return f"{microseconds:g} \u00b5s"


def _bytes(size: float) -> str:
    return amount(size).replace(".00", "").replace(".0 ", " ")


def _ends(groups: Sequence[Group]) -> list[float]:
    return [v for group in groups for v in (group.final.low, group.final.median, group.final.high) if v is not None]


def _curves(sheet: _Sheet) -> Any:
    figure, axes = _figure(2 * len(sheet.panels), columns=2, width=5.4)
    trained = [group for group in sheet.groups if not group.reference]
    for panel, pair in zip(sheet.panels, zip(axes[::2], axes[1::2], strict=True), strict=False):
        for axis, key, label in zip(pair, ("epoch", "seconds"), ("epochs", "seconds of training"), strict=True):
            for group in (group for group in trained if group in sheet.of(panel)):
                line = sheet.sign(group).line
                xs, quality = getattr(group.curve, key), group.curve.quality
                nan = float("nan")
                axis.plot(xs, [nan if q.median is None else q.median for q in quality], **line)
                if len(group.runs) > 1:
                    low, high = (
                        [nan if v is None else v for v in (getattr(q, side) for q in quality)]
                        for side in ("low", "high")
                    )
                    axis.fill_between(xs, low, high, color=line["color"], alpha=0.12, linewidth=0)
            target = sheet.groups[0].first.target
            if target is not None:
                axis.axhline(target, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
            axis.set_title(sheet.title(panel))
            axis.set(xlabel=label, ylabel=sheet.metric)
            axis.set_xlim(left=0)
            _quality_axis(axis, sheet, _ends([g for g in trained if g in sheet.of(panel)]), pad=0.45)
    return _finish(sheet, figure, "quality against epochs and against time", trained)


def _tradeoff(measure: str, label: str, title: str, *, log: bool) -> Callable[[_Sheet], Any]:
    def compose(sheet: _Sheet) -> Any:
        figure, axes = _figure(len(sheet.panels))
        trained = [group for group in sheet.groups if not group.reference]
        for panel, axis in zip(sheet.panels, axes, strict=False):
            members = [group for group in sheet.of(panel) if not group.reference and getattr(group, measure).median]
            for group in members:
                sheet.point(axis, group, getattr(group, measure), group.final)
            front = sorted(
                (getattr(g, measure).median, g.final.median) for g in members if getattr(g, f"front_{measure}")
            )
            axis.plot([x for x, _ in front], [y for _, y in front], color="#2f5f98", alpha=0.4, linewidth=5, zorder=2)
            if log and members:
                _log(axis.xaxis, _bytes)
            axis.set_title(sheet.title(panel))
            axis.set(xlabel=label, ylabel="final " + sheet.metric)
            _quality_axis(axis, sheet, _ends(members), pad=0.12)
        return _finish(sheet, figure, f"{title}; the broad line is the Pareto front", trained)

    return compose


def _step_time(sheet: _Sheet) -> Any:
    rows = max(len(sheet.of(panel)) for panel in sheet.panels)
    figure, axes = _figure(len(sheet.panels), height=1.2 + 0.2 * rows)
    parts = (
        ("compute_ms", "compute", 0, ""),
        ("codec_ms", "codec", 5, "///"),
        ("exposed_ms", "other exposed communication", 1, "xx"),
    )
    for panel, axis in zip(sheet.panels, axes, strict=False):
        timed = [(median, group) for group in sheet.of(panel) if (median := group.step_ms.median) is not None]
        members = [group for _, group in sorted(timed, key=lambda pair: -pair[0])]
        left = [0.0] * len(members)
        for name, label, tint, hatch in parts:
            values = [_part(group, name) for group in members]
            if any(values):
                axis.barh(range(len(members)), values, left=left, height=0.7, color=COLOURS[tint], hatch=hatch,
                          edgecolor="white", linewidth=0, label=label)  # fmt: skip
            left = [a + b for a, b in zip(left, values, strict=True)]
        for at, group in enumerate(members):
            step = group.step_ms
            axis.plot([step.low, step.high], [at, at], color=MUTED, linewidth=1)
            axis.plot([step.median], [at], marker="|", markersize=11, markeredgewidth=2, color="black")
        axis.set_yticks(range(len(members)), [_plain(group.label) for group in members], fontsize=7.5)
        axis.set_title(sheet.title(panel))
        axis.set_xlabel("milliseconds of a step")
    figure.suptitle(
        f"{sheet.task}: where the time of a step goes (tick: the measured step)", x=0.01, ha="left", fontsize=11
    )
    _mark_procedural(figure, sheet.groups)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False, fontsize=8)
    return figure


def _part(group: Group, name: str) -> float:
    """Milliseconds. Exposed communication contains the codec's time, of which some may hide behind the backward pass: parts
    add up to the step.
    """
    exposed, codec = group.exposed_ms.median, group.codec_ms.median or 0.0
    if exposed is None or name == "compute_ms":
        return getattr(group, name).median or 0.0
    return min(codec, exposed) if name == "codec_ms" else max(0.0, exposed - codec)


def _links(sheet: _Sheet) -> Any:
    figure, (axis,) = _figure(1, width=8.0, height=4.4)
    order = networks(sheet.groups)
    lines: dict[tuple[str, int], list[Group]] = {}
    for group in sheet.groups:
        if group.throughput.median is not None:
            lines.setdefault((group.label, group.first.workers), []).append(group)
    for members in lines.values():
        members.sort(key=lambda group: order.index(network(group.first)))
        xs = [order.index(network(group.first)) for group in members]
        axis.plot(xs, [group.throughput.median for group in members], **sheet.sign(members[0]).line)
        for x, group in zip(xs, members, strict=True):
            sheet.point(axis, group, Spread(x, x, x), group.throughput)
    axis.set_xticks(range(len(order)), [network_name(one, order) for one in order])
    axis.set_ylim(bottom=0)
    axis.set(xlabel="link, slow to fast", ylabel="samples per second, all workers")
    return _finish(sheet, figure, "transports and links", sheet.groups)


def _prediction(sheet: _Sheet) -> Any:
    figure, (axis,) = _figure(1, width=7.0, height=5.0)
    members = [group for group in sheet.groups if group.prediction_error.median is not None]
    values = [v for group in members for v in (group.step_ms.median, group.predicted_ms.median) if v is not None]
    ends = [0.9 * min(values), 1.1 * max(values)]
    axis.fill_between(
        ends, [0.85 * e for e in ends], [1.15 * e for e in ends], color="#2f5f98", alpha=0.12, linewidth=0
    )
    axis.plot(ends, ends, color=MUTED, linewidth=0.9)
    for group in members:
        sheet.point(axis, group, group.step_ms, group.predicted_ms)
    axis.set(xlabel="measured step, ms", ylabel="predicted step, ms", xlim=ends, ylim=ends)
    _log(axis.xaxis, _number)
    _log(axis.yaxis, _number)
    return _finish(sheet, figure, "what the link model predicts; the band is \u00b1 15 %", members)


def _codecs(report: Report) -> Any:
    rows = report.found.codecs
    threads = min(row["threads"] for row in rows)
    sizes = sorted({row["size"] for row in rows if row["threads"] == threads})
    cost: dict[str, float] = {}
    for row in rows:
        if (row["size"], row["threads"]) == (sizes[-1], threads):
            name = row["method"] or row["operation"]
            cost[name] = cost.get(name, 0.0) + (row["microseconds"] or row["ratio"])
    others = dict.fromkeys(row["method"] or row["operation"] for row in rows)
    names = [*(name for name in others if name not in cost), *sorted(cost, key=lambda name: -cost[name])]
    figure, axes = _figure(len(sizes), height=1.4 + 0.26 * len(names))
    kinds = list(dict.fromkeys(row["operation"] if row["method"] else "kernel" for row in rows))
    for size, axis in zip(sizes, axes, strict=False):
        timed = all(row["microseconds"] is not None for row in rows)
        for row in (row for row in rows if row["size"] == size and row["threads"] == threads):
            value = row["microseconds"] if timed else row["ratio"]
            if value is None:
                continue
            kind = kinds.index(row["operation"] if row["method"] else "kernel")
            scale = value / row["ratio"] if row["ratio"] else 1.0
            edges = [value if row[side] is None or not row["ratio"] else scale * row[side] for side in ("low", "high")]
            at = names.index(row["method"] or row["operation"]) + 0.3 * ((kind + 0.5) / len(kinds) - 0.5) * 2
            colour = COLOURS[(0, 7, 2, 3, 5)[kind % 5]]
            box = {"med": value, "q1": edges[0], "q3": edges[1], "whislo": edges[0], "whishi": edges[1]}
            axis.bxp([box], positions=[at], widths=0.25, orientation="horizontal", showfliers=False, showcaps=False,
                     patch_artist=True, boxprops={"facecolor": "white", "edgecolor": colour}, medianprops={"color": colour},
                     manage_ticks=False)  # fmt: skip
        axis.set_yticks(range(len(names)), [_plain(name) for name in names], fontsize=7.5)
        _log(axis.xaxis, _time if timed else _number)
        axis.set_title(f"{size:,} elements")
        axis.set_xlabel("time of one tensor" if timed else "time relative to y.add_(x)")
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor="white", edgecolor=COLOURS[(0, 7, 2, 3, 5)[k % 5]], label=_plain(kind))
        for k, kind in enumerate(kinds)
    ]
    figure.suptitle(f"Codec latency with {threads} thread{'s' if threads > 1 else ''}: median and quartiles",
                    x=0.01, ha="left", fontsize=11)  # fmt: skip
    figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False, fontsize=8)
    return figure


_FIGURES: dict[str, tuple[Callable[[_Sheet], Any], Callable[[Group], bool]]] = {
    "quality-epoch-time": (
        _curves,
        lambda g: not g.reference and sum(q.median is not None for q in g.curve.quality) > 1,
    ),
    "quality-throughput": (
        _tradeoff("throughput", "samples per second, all workers", "quality against throughput", log=False),
        lambda g: not g.reference and g.final.median is not None and g.throughput.median is not None,
    ),
    "quality-bytes": (
        _tradeoff("sent", "bytes sent by each worker and step", "quality against bytes sent", log=True),
        lambda g: not g.reference and g.final.median is not None and bool(g.sent.median),
    ),
    "step-time": (_step_time, lambda g: g.step_ms.median is not None),
    "links": (_links, lambda g: g.throughput.median is not None),
    "prediction": (_prediction, lambda g: g.prediction_error.median is not None),
}
