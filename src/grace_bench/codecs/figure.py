"""The figure of a document: up to which link speed each method pays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.predict.links import link
from grace_bench.codecs.plan import size_text
from grace_bench.report.marks import SPEED
from grace_bench.report.render import save
from grace_bench.report.theme import titled

_LEAST, _MOST = 1e7, 1e12  # bits per second: the ends of the axis
_DENSE = ("fp32", "bf16")


def draw(document: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``codecs.svg`` and ``codecs.png``, of the fewest threads; nothing where no method was measured whole.

    Raises:
        MissingExtraError: vl-convert is not installed.
        OSError: a file cannot be written.
    """
    threads = min(document["plan"]["threads"])
    rows = [row for row in document["worth"] if row["threads"] == threads]
    return save(_sheet(document, rows), out, "codecs") if rows else []


def _sheet(document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    machine, plan = document["environment"], document["plan"]
    links = [{"speed": link(entry["link"]).bits_per_second, "name": entry["link"]} for entry in rows[0]["links"]]
    title = "Links on which a method is faster than a dense all-reduce"
    says = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['kernels']}; {plan['workers']} workers; bars end where "
        "both take as long, or at the edge: always"
    )
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    panels = [_panel(size, [bar for row in rows if row["size"] == size for bar in _bars(row)], links) for size in sizes]
    return titled(title, says, {"concat": panels, "columns": 3})


def _bars(row: dict[str, Any]) -> list[dict[str, Any]]:
    out = []
    for dense in _DENSE:
        speed = row[f"faster_than_{dense}_below"]
        end = _MOST if speed is None else min(max(speed, _LEAST), _MOST)
        labels = {"than": f"than {dense}", "never": "never" if speed == 0 else ""}
        out.append({"method": row["method"], "start": _LEAST, "end": end, **labels})
    return out


def _panel(size: int, bars: Sequence[dict[str, Any]], links: Sequence[dict[str, Any]]) -> dict[str, Any]:
    best = {"field": "end", "op": "max", "order": "descending"}
    each = {
        "y": {"field": "method", "type": "nominal", "title": None, "sort": best},
        "yOffset": {"field": "than", "type": "nominal", "sort": "descending"},
    }  # fmt: skip
    x = {
        "field": "start", "type": "quantitative", "title": "speed of a link",
        "scale": {"type": "log", "domain": [_LEAST, _MOST], "nice": False}, "axis": {"labelExpr": SPEED, "tickCount": 5},
    }  # fmt: skip
    color = {"field": "than", "type": "nominal", "sort": "descending"}
    layers = [
        {"mark": "bar", "encoding": {**each, "x": x, "x2": {"field": "end"}, "color": color}},
        {"mark": {"type": "text", "align": "left", "dx": 4, "style": "small"},
         "encoding": {**each, "x": x, "text": {"field": "never"}}},
        {"data": {"values": list(links)}, "mark": {"type": "rule", "style": "goal"},
         "encoding": {"x": {**x, "field": "speed"}}},
        {"data": {"values": list(links)}, "mark": {"type": "text", "style": "small", "dy": -6, "baseline": "bottom"},
         "encoding": {"x": {**x, "field": "speed"}, "y": {"value": 0}, "text": {"field": "name"}}},
    ]  # fmt: skip
    title = {"text": f"{size_text(size)} elements", "offset": 24}
    height = {"step": 13, "for": "offset"}
    return {"width": 330, "height": height, "title": title, "data": {"values": list(bars)}, "layer": layers}
