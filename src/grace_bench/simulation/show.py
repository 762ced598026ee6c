"""A simulation as a table, and as a figure: loss against bytes; of learners, goodput and loss of each kind of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from grace_bench.report.direct_labels import axis_of, channel, height_for, lines_beside
from grace_bench.report.marks import BYTES, PLAIN
from grace_bench.report.render import check_kind, save
from grace_bench.report.theme import sign, titled
from grace_command.text import amount, plain_table

KINDS = (".svg",)  # of a figure's file
_WIDTH, _HEIGHT = 520, 320
_BAR_WIDTH, _BAR_STEP = 300, 22


def describe(setting: dict[str, Any]) -> str:
    """Describes the setting of a simulation in a line."""
    late = f", {setting['late']:.0%} of them late" if setting["late"] else ""
    goes = "hands over what it owes" if setting["hands_over"] else "takes along what it owes"
    churn = f"{setting['churn']:.2%} go in a step, and each {goes}" if setting["churn"] else "nobody goes"
    alike = "all with the same data" if setting["alpha"] is None else f"data by Dirichlet {setting['alpha']:g}"
    return (
        f"{setting['workers']:,} workers, {setting['part']:,} take part in a step{late}; {churn}; {alike}; "
        f"{setting['steps']:,} steps of SGD, lr {setting['lr']:g}"
    )


def view(document: dict[str, Any]) -> RenderableType:
    """The table."""
    headings = ["method", "loss", "accuracy", "sent, all", "each, a step", "went", "lost", "owed", "applied"]
    table = plain_table(None, headings)
    for row in document["methods"]:
        ends = ("diverged", "-") if row["loss"] is None else (f"{row['loss']:.4f}", f"{row['accuracy']:.1%}")
        norms = (f"{row[key]:.3g}" for key in ("lost", "owed", "applied"))
        each = amount(row["bytes_per_worker_step"])
        table.add_row(row["method"], *ends, amount(row["sent"]), each, str(row["left"]), *norms)
    note = "lost, owed, applied: norms in units of the mean gradient; loss and accuracy on the test set"
    return Group(describe(document["setting"]), "", table, "", note)


def describe_decoupled(setting: dict[str, Any]) -> str:
    """Describes the setting of a simulation of learners in a line."""
    deaths = f"one dies every {setting['kill_every']:g} s and is back after {setting['repair']:g} s"
    return (
        f"{setting['workers']:,} workers, {setting['slow']:.0%} of them at half speed; "
        f"{deaths if setting['kill_every'] else 'nobody dies'}; {setting['steps']:,} steps of {setting['step_time']:g} s; "
        f"learners: every {setting['every']} steps, {setting['fragments']} fragments, quorum {setting['quorum']}"
    )


def view_decoupled(document: dict[str, Any]) -> RenderableType:
    """The table of learners that wait for nobody, beside those who do."""
    headings = ["training", "method", "loss", "accuracy", "goodput", "who never dies", "stopped", "sent, all", "merges"]
    table = plain_table(None, headings)
    for row in document["rows"]:
        ends = _ends(row, 4), f"{row['accuracy']:.1%}" if row["goodput"] and row["loss"] is not None else "-"
        survivors = "-" if row["survivors"] is None else f"{row['survivors']:.1%}"
        merges = "-" if row["merges"] is None else str(row["merges"])
        shares = f"{row['goodput']:.1%}", survivors, f"{row['stopped']:.0f} s"
        table.add_row(row["kind"], row["method"], *ends, *shares, amount(row["sent"]), merges)
    note = "goodput: share of all workers' time in steps that count; stopped: nobody trained; loss of the merged parameters"
    return Group(describe_decoupled(document["setting"]), "", table, "", note)


def _ends(row: dict[str, Any], digits: int) -> str:
    """The loss of a row at the end, or why it says nothing."""
    if row["loss"] is None:
        return "diverged"
    return f"{row['loss']:.{digits}f}" if row["goodput"] else "no progress"


def draw_decoupled(document: dict[str, Any], out: Path) -> list[Path]:
    """Writes the figure of :func:`simulate_decoupled`; the rest is as :func:`draw`."""
    check_kind(out, *KINDS)
    return save(sheet_decoupled(document), out.parent, out.stem)


def sheet_decoupled(document: dict[str, Any]) -> dict[str, Any]:
    """The figure as a Vega-Lite document: goodput and loss, side by side, a bar for each row of the table."""
    rows = []
    for row in document["rows"]:
        name = f"{row['kind']}, {row['method']}" if row["kind"] == "decoupled" else row["kind"]
        rows.append({
            "name": name, "goodput": row["goodput"], "loss": row["loss"] or 0.0,
            "shares": f"{row['goodput']:.0%}", "ends": _ends(row, 3),
        })  # fmt: skip
    order = [row["name"] for row in rows]
    panels = [
        _bars(rows, order, "goodput", "shares", "goodput: share of all workers' time in steps that count"),
        _bars(rows, order, "loss", "ends", "loss on the test set"),
    ]
    return titled("Training while workers die", describe_decoupled(document["setting"]), {"hconcat": panels})


def _bars(rows: list[dict[str, Any]], order: list[str], field: str, text: str, title: str) -> dict[str, Any]:
    y = {"field": "name", "type": "nominal", "title": None, "sort": order, "axis": {"labelLimit": 300}}
    x = {"field": field, "type": "quantitative", "title": title, "scale": {"zero": True}}
    mark = {"type": "text", "align": "left", "dx": 4, "style": "small"}
    layers = [
        {"mark": "bar", "encoding": {"y": y, "x": x}},
        {"mark": mark, "encoding": {"y": y, "x": x, "text": {"field": text}}},
    ]
    return {"width": _BAR_WIDTH, "height": {"step": _BAR_STEP}, "data": {"values": rows}, "layer": layers}


def draw(document: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``out``, an .svg, and a .png beside it.

    Raises:
        ConfigurationError: another kind of file.
        MissingExtraError: vl-convert is not installed.
        OSError: it cannot be written.
    """
    check_kind(out, *KINDS)
    return save(sheet(document), out.parent, out.stem)


def sheet(document: dict[str, Any]) -> dict[str, Any]:
    """The figure as a Vega-Lite document."""
    methods = [row["method"] for row in document["methods"]]
    others = [name for name in methods if name != "none"]
    curves = {}
    for row in document["methods"]:
        name, both = row["method"], zip(row["curve"]["sent"], row["curve"]["loss"], strict=True)
        own = sign(0, baseline=True) if name == "none" else sign(others.index(name))
        curves[name] = own, [(x, y) for x, y in both if x and y is not None]
    height = height_for(len(methods), _HEIGHT)
    across = axis_of((x for row in document["methods"] for x in row["curve"]["sent"]), _WIDTH, {"type": "log"})
    up = axis_of((y for row in document["methods"] for y in row["curve"]["loss"]), height, {"type": "log"})
    x = channel("sent", "sent by all workers (log)", across, BYTES)
    y = channel("loss", "loss on the test set (log)", up, PLAIN)
    line, names = lines_beside(curves, x, y, across, up)
    plot = {"width": _WIDTH, "height": height, "layer": [line, *names]}
    return titled("Loss against bytes", describe(document["setting"]), plot)
