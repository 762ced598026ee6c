"""Figures of a document: all methods at one size, and what has a goal. Box plots, in multiples of ``y.add_(x)``."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.codecs.goals import RATIO, position
from grace.bench.codecs.clock import OPERATIONS
from grace.bench.codecs.plan import size_text
from grace.bench.extras import need
from grace.bench.scratch import write_atomically
from grace.registry import recipe

# Paul Tol's "bright" scheme, chosen apart for the colour-blind.
_FAMILIES = {
    "quantization": "#4477AA",
    "sparsification": "#EE6677",
    "hybrid": "#AA3377",
    "low rank": "#228833",
    "rotation": "#CC9933",
    "cast": "#66CCEE",
}
_OTHER, _INK, _MUTED, _FAINT = "#777777", "#222222", "#555555", "#e4e4e4"
_MET, _MISSED = "#228833", "#BB3322"
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": "#aaaaaa",
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "svg.hashsalt": "grace",  # the same document gives the same file
}
_ROW = 0.235  # inches
_OTHERS = {"reference": ("D", "reference kernels"), "torch": ("x", "plain torch code")}
_TITLES = ("encode", "encode with error feedback", "decode and sum")


def draw(document: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``codecs`` and, where goals were measured, ``codecs-goals`` into ``out``, each as PNG and SVG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    need("matplotlib", extra="bench")
    paths: list[Path] = []
    methods, goals = _method_rows(document), _goal_rows(document)
    if methods:
        paths += _save(lambda figure: _methods(figure, document, methods), out / "codecs")
    if goals:
        paths += _save(lambda figure: _goals(figure, document, goals), out / "codecs-goals")
    return paths


def _save(compose: Callable[[Any], None], stem: Path) -> list[Path]:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paths = []
    with rc_context(_STYLE):
        figure = Figure()
        FigureCanvasAgg(figure)
        compose(figure)
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
            path = stem.with_name(f"{stem.name}.{kind}")
            write_atomically(path, buffer.getvalue())
            paths.append(path)
    return paths


def _method_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
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


def _goal_rows(document: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
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


# ---- all methods ----------------------------------------------------------------------------------------------------
def _methods(figure: Any, document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    cost = {row["method"]: row["ratio"] for row in reversed(rows)}  # the first operation's: encoding
    names = sorted(cost, key=lambda name: -cost[name])
    bottom, top = 0.95, 0.9  # inches
    height = _ROW * len(names) + bottom + top
    figure.set_size_inches(12.5, height)
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    figure.subplots_adjust(left=0.135, right=0.985, wspace=0.05, bottom=bottom / height, top=1 - top / height)
    for axis, operation, title in zip(axes, OPERATIONS, _TITLES, strict=True):
        _ground(axis, len(names), narrow=_decades(rows) < 3.5)
        for row in (row for row in rows if row["operation"] == operation):
            at = names.index(row["method"])
            for other in row["others"]:
                if other["kernels"] in _OTHERS:
                    _marker(axis, other["ratio"], at, other["kernels"])
            _box(axis, row["samples"], at, _colour(row["method"]), 0.62)
            if row["goal"] is not None:
                _tick(axis, row["goal"], at, _MET if row["ratio"] <= row["goal"] else _MISSED)
        payloads = {row["payloads"] for row in rows if row["operation"] == operation and row["payloads"]}
        axis.set_title(title + (f" {max(payloads)} workers" if payloads else ""))
        axis.set_xlabel("multiples of y.add_(x)")
    axes[0].set_yticks(range(len(names)), names)
    _legend(figure, sorted({_family(name) for name in names}, key=[*_FAMILIES, "other"].index), rows)
    first = rows[0]
    what = "caches emptied before each sample" if first["cold"] else "small: caches warm, the Python call included"
    _heading(figure, height, f"Codecs at {size_text(first['size'])} elements", document, first["threads"], what)


def _family(name: str) -> str:
    found = recipe(name.partition(":")[0]).family
    return found if found in _FAMILIES else "other"


def _colour(name: str) -> str:
    return _FAMILIES.get(_family(name), _OTHER)


def _legend(figure: Any, families: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=_FAMILIES.get(name, _OTHER), alpha=0.75, label=name, linewidth=0) for name in families
    ]
    shown = {other["kernels"] for row in rows for other in row["others"]}
    for kind, (marker, label) in _OTHERS.items():
        if kind in shown:
            handles.append(Line2D([], [], linestyle="", label=label, **_look(marker)))
    if any(row["goal"] is not None for row in rows):
        for colour, label in ((_MET, "goal, met"), (_MISSED, "goal, not met")):
            handles.append(Line2D([], [], linestyle="", marker="|", markersize=9, markeredgewidth=2.2, color=colour, label=label))  # fmt: skip  # noqa: E501
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=8.5,
                  handletextpad=0.5, columnspacing=1.6)  # fmt: skip


# ---- goals ----------------------------------------------------------------------------------------------------------
def _goals(figure: Any, document: dict[str, Any], pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = list(reversed(list(dict.fromkeys(goal["row"] for goal, _ in pairs))))
    counts = sorted({goal["threads"] for goal, _ in pairs})
    bottom, top = 0.95, 0.75
    height = 1.3 * _ROW * len(names) + bottom + top
    figure.set_size_inches(10.5, height)
    axis = figure.subplots()
    figure.subplots_adjust(left=0.285, right=0.98, bottom=bottom / height, top=1 - top / height)
    _ground(axis, len(names), narrow=True)
    colours = ("#4477AA", "#CC9933", "#AA3377", "#66CCEE")
    thick = 0.78 / len(counts)
    for goal, row in pairs:
        index = counts.index(goal["threads"])
        at = names.index(goal["row"]) + thick * ((len(counts) - 1) / 2 - index)
        if "others" in row and index == 0:
            for other in row["others"]:
                if other["kernels"] in _OTHERS:
                    _marker(axis, other["ratio"], names.index(goal["row"]), other["kernels"])
        _box(axis, row["samples"], at, colours[index % 4], 0.82 * thick)
        _tick(axis, goal["goal"], at, _MET if goal["met"] else _MISSED, thick / 2)
        if goal["stretch"] is not None:
            _tick(axis, goal["stretch"], at, "#999999", thick / 2.6, 1.2)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("multiples of y.add_(x)")
    handles: list[Any] = [
        Patch(facecolor=colours[i % 4], alpha=0.75, linewidth=0, label=f"{count} thread" + ("s" if count > 1 else ""))
        for i, count in enumerate(counts)
    ]
    for colour, label in ((_MET, "goal, met"), (_MISSED, "goal, not met"), ("#999999", "stretch")):
        handles.append(Line2D([], [], linestyle="", marker="|", markersize=9, markeredgewidth=2.2, color=colour, label=label))  # fmt: skip  # noqa: E501
    shown = {other["kernels"] for _, row in pairs for other in row.get("others", [])}
    handles += [Line2D([], [], linestyle="", label=label, **_look(marker)) for kind, (marker, label) in _OTHERS.items()
                if kind in shown]  # fmt: skip
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=8.5,
                  handletextpad=0.5, columnspacing=1.6)  # fmt: skip
    met = sum(goal["met"] for goal, _ in pairs)
    title = f"{met} of {len(pairs)} goals met at {size_text(pairs[0][0]['size'])} elements"
    _heading(figure, height, title, document, None, "caches emptied before each sample")


# ---- pieces ---------------------------------------------------------------------------------------------------------
def _ground(axis: Any, count: int, *, narrow: bool) -> None:
    """Stripes, a logarithmic axis of plain numbers, and the line where one addition lies. ``narrow``: few decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for at in range(0, count, 2):
        axis.axhspan(at - 0.5, at + 0.5, color="#f6f6f6", linewidth=0, zorder=0)
    axis.set_ylim(-0.6, count - 0.4)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0) if narrow else (1.0,)))
    axis.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    )
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="x", color=_FAINT, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.axvline(1.0, color=_INK, linewidth=1.0, zorder=1)
    axis.tick_params(axis="y", length=0)


def _decades(rows: Sequence[dict[str, Any]]) -> float:
    """Powers of ten between the shortest and the longest."""
    ratios = [row["ratio"] for row in rows]
    return math.log10(max(ratios) / min(ratios))


def _box(axis: Any, samples: Sequence[float], at: float, colour: str, width: float) -> None:
    axis.boxplot(
        [samples], positions=[at], widths=width, orientation="horizontal", manage_ticks=False, patch_artist=True,
        showfliers=False, showcaps=False, zorder=3,
        boxprops={"facecolor": colour, "alpha": 0.75, "edgecolor": colour, "linewidth": 1.0},
        medianprops={"color": _INK, "linewidth": 1.3, "solid_capstyle": "butt"},
        whiskerprops={"color": colour, "linewidth": 1.0},
    )  # fmt: skip


def _look(marker: str) -> dict[str, Any]:
    return {"marker": marker, "markersize": 4.2, "color": _MUTED, "markerfacecolor": "white", "markeredgewidth": 1.0}


def _marker(axis: Any, ratio: float, at: float, kind: str) -> None:
    axis.plot([ratio], [at], linestyle="", zorder=5, **_look(_OTHERS[kind][0]))


def _tick(axis: Any, ratio: float, at: float, colour: str, half: float = 0.42, width: float = 2.2) -> None:
    axis.plot([ratio, ratio], [at - half, at + half], color=colour, linewidth=width, solid_capstyle="butt", zorder=4)


def _heading(figure: Any, height: float, title: str, document: dict[str, Any], threads: int | None, what: str) -> None:
    machine = document["environment"]
    count = "" if threads is None else f"; {threads} thread" + ("s" if threads > 1 else "")
    figure.text(0.012, 1 - 0.26 / height, title, size=13, weight="bold", va="center")
    figure.text(
        0.012, 1 - 0.5 / height,
        f"{machine['processor']}, {machine['cores']} cores, {machine['kernels']}, torch {machine['torch']}{count}; "
        f"data randn * exp(randn); {what}; boxes are quartiles, the line in them is the median",
        size=8.5, color=_MUTED, va="center",
    )  # fmt: skip
