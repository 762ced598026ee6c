"""A simulation as a table, and as a figure: loss against bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from grace_bench.report.direct_labels import Axis, axis_of, beside_ends, height_for
from grace_bench.report.marks import BYTES, LINE, tick_values
from grace_bench.report.render import check_kind, save
from grace_bench.report.theme import config, sign
from grace_command.text import amount, plain_table

KINDS = (".svg",)  # of a figure's file
_WIDTH, _HEIGHT = 520, 320


def describe(setting: dict[str, Any]) -> str:
    """What was simulated, in a line."""
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
    rows, ends, sent, losses = [], [], [1.0], [1e-9]
    for row in document["methods"]:
        sent += [value for value in row["curve"]["sent"] if value]
        losses += [value for value in row["curve"]["loss"] if value is not None]
    across = axis_of(sent[1:], _WIDTH, {"type": "log"})
    height = height_for(len(document["methods"]), _HEIGHT)
    up = axis_of(losses[1:], height, {"type": "log"})
    methods = [row["method"] for row in document["methods"]]
    for row in document["methods"]:
        dense = row["method"] == "none"
        mark = sign(0 if dense else [one for one in methods if one != "none"].index(row["method"]), baseline=dense)
        look = {"name": row["method"], "opacity": 1, **mark.shape, **mark.paint("light")}
        points = [
            (x, y) for x, y in zip(row["curve"]["sent"], row["curve"]["loss"], strict=True) if x and y is not None
        ]
        plain = {key: value for key, value in look.items() if key != "shape"}
        rows += [{"sent": x, "loss": y, **plain} for x, y in points]
        if points:
            x, y = points[-1]
            ends.append((_WIDTH * across.part(x), height * (1 - up.part(y)), look))
    title = "Loss against bytes"
    says = describe(document["setting"])
    return {
        "title": {"text": title, "subtitle": says, "fontSize": 15},
        "description": f"{title}. {says}", "width": _WIDTH, "height": height, "padding": 14, "config": config("light"),
        "layer": [
            {"data": {"values": rows}, "mark": {"type": "line"}, "encoding": {
                "x": _axis("sent", "sent by all workers (log)", across, BYTES),
                "y": _axis("loss", "loss on the test set (log)", up, "format(datum.value, ',~g')"),
                **LINE, "detail": [{"field": "name"}],
            }},
            *beside_ends(ends, _WIDTH, height),
        ],
    }  # fmt: skip


def _axis(field: str, title: str, axis: Axis, text: str) -> dict[str, Any]:
    ticks = {"labelExpr": text, "values": tick_values(1, 2, 5), "labelOverlap": "greedy"}
    return {"field": field, "type": "quantitative", "title": title, "scale": axis.scale, "axis": ticks}
