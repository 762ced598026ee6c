"""Figures of a comparison: what the same accuracy costs in epochs, in bytes and in time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.bench.extras import need
from grace.bench.report.style import FAINT, MARKERS, RC, sign
from grace.bench.scratch import write_atomically


def draw(results: Sequence[dict[str, Any]], out: Path) -> list[Path]:
    """Writes ``comparison.png`` and ``comparison.svg`` into ``out``. The first result is the baseline.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    need("matplotlib", extra="bench")
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(RC):
        figure = Figure(figsize=(12.5, 5.2))
        FigureCanvasAgg(figure)
        _compose(figure, results)
        paths = []
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
            path = out / f"comparison.{kind}"
            write_atomically(path, buffer.getvalue())
            paths.append(path)
    return paths


def _compose(figure: Any, results: Sequence[dict[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    first = results[0]
    metric = first["metric"]
    axes = figure.subplots(1, 3, sharey=True)
    figure.subplots_adjust(left=0.062, right=0.985, top=0.80, bottom=0.335, wspace=0.07)
    higher = first["better"] == "higher"
    panels = (
        ("epoch", "per epoch: what compression loses", "epochs"),
        ("sent_bytes", "per byte: what it saves", "bytes sent by each worker, so far"),
        ("seconds", "per second: what it costs here", "seconds of training, so far"),
    )
    handles = []
    for index, result in enumerate(results):
        style = _style(index)
        for axis, (key, _, _) in zip(axes, panels, strict=True):
            points = [p for p in result["curve"] if p[metric] is not None and (key != "sent_bytes" or p[key] > 0)]
            (line,) = axis.plot([p[key] for p in points], [p[metric] for p in points], **style)
            if points:
                axis.plot(points[-1][key], points[-1][metric], **{**style, "marker": style["marker"], "markersize": 6})
        handles.append(line)
    for axis, (key, title, label) in zip(axes, panels, strict=True):
        axis.set_title(title)
        axis.set_xlabel(label)
        axis.grid(color=FAINT, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.margins(x=0.03)
        if key == "sent_bytes":
            _byte_axis(axis, results)
        else:
            axis.set_xlim(left=0)
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    _value_axis(axes[0], results, metric, higher)
    axes[0].set_ylabel(f"test {metric}")
    _legend(figure, results, handles, metric, higher)
    better = "higher" if higher else "lower"
    figure.text(0.062, 0.945, f"{first['task']}: test {metric} against epochs, bytes and time", size=13, weight="bold")
    workers = f"{first['workers']} worker" + ("s" if first["workers"] != 1 else "")
    cores = first["environment"]["cores"]
    figure.text(
        0.062, 0.895,
        f"{workers} on one machine of {cores} cores, gloo over loopback; {first['steps']} steps; seed {first['seed']}; "
        f"{better} is better. One run each: differences of a point or so are chance.",
        size=9, color="#555555",
    )  # fmt: skip


def _style(index: int) -> dict[str, Any]:
    if index == 0:
        return {"color": "black", "linewidth": 2.2, "zorder": 3, "marker": "o", "markersize": 0}
    return {**sign(index - 1).line, "marker": MARKERS[index % len(MARKERS)], "markersize": 0}


def _byte_axis(axis: Any, results: Sequence[dict[str, Any]]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    from grace.bench.report.tables import amount

    if not any(point["sent_bytes"] > 0 for result in results for point in result["curve"]):
        axis.text(0.5, 0.5, "one worker sends nothing", transform=axis.transAxes, ha="center")
        return
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0)))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda size, _: amount(size).replace(".00", "").replace(".0 ", " ")))


def _value_axis(axis: Any, results: Sequence[dict[str, Any]], metric: str, higher: bool) -> None:
    """Shows where methods differ: the way up from chance is left out, the end of every curve is not."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if metric != "accuracy" or not higher:
        return
    finals = [result["final"] for result in results if result["final"] is not None]
    lowest = min(finals, default=0.0)
    axis.set_ylim(max(0.0, min(0.8, lowest - 0.15)), 1.004)
    axis.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))  # ticks that are whole per cents
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def _legend(figure: Any, results: Sequence[dict[str, Any]], handles: Sequence[Any], metric: str, higher: bool) -> None:
    """One entry for each method, the best first, with what it came to and what it sent."""
    from matplotlib.lines import Line2D

    from grace.bench.report.tables import share

    worst = -float("inf") if higher else float("inf")
    order = sorted(
        range(len(results)), key=lambda i: worst if (v := results[i]["final"]) is None else v, reverse=higher
    )
    shown, labels = [], []
    for i in order:
        final, relative = results[i]["final"], results[i]["traffic"]["relative_to_fp32"]
        value = "diverged" if final is None else f"{100 * final:.1f} %" if metric == "accuracy" else f"{final:.4g}"
        adjusted = "*" if results[i]["optimizer"]["why"] else ""
        labels.append(f"{results[i]['method']}{adjusted}\n{value}, {share(relative)} of the bytes")
        like = handles[i]
        shown.append(
            Line2D(
                [], [], color=like.get_color(), linestyle=like.get_linestyle(), linewidth=like.get_linewidth(),
                marker=_style(i)["marker"], markersize=6,
            )
        )  # fmt: skip
    figure.legend(
        shown, labels, loc="upper left", bbox_to_anchor=(0.057, 0.225), ncols=5, frameon=False, fontsize=8.5,
        handlelength=3.2, columnspacing=2.0, labelspacing=0.9, borderaxespad=0,
    )  # fmt: skip
    if any(result["optimizer"]["why"] for result in results):
        figure.text(0.985, 0.012, "* learning rate or momentum is not the task's own; the results say why",
                    size=8, color="#555555", ha="right")  # fmt: skip
