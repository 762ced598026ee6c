"""``grace list`` and ``grace explain``: a method's documentation, its declared facts, and its traffic beside dense
all-reduces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import grace
from grace.bench.report.tables import amount, plain_table, share
from grace.cli.options import Json
from grace.cli.output import show, write_json
from grace.collectives import Traffic
from grace.knobs import as_call
from grace.method import Method
from grace.peer import Peer
from grace.registry import documentation, parse, recipe

SHAPES = ((64, 64, 3, 3), (1024, 1024), (4096, 4096))  # a convolution, a small and a large matrix
WORLDS = (2, 4, 8, 32, 128)
_SECTION = re.compile(r"^([A-Z][A-Za-z ]*):$")


# ---- the commands ----------------------------------------------------------------------------------------------------
def list_(as_json: Json = False) -> None:
    """List the registered methods.

    Example: [bold]grace list[/]
    """
    rows = describe_all()
    if as_json:
        write_json(rows)
    else:
        show(list_table(rows))


def explain(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method, with knobs after a colon.")],
    as_json: Json = False,
) -> None:
    """Explain a method: what it sends, what it promises, and its bytes beside a dense all-reduce.

    Example: [bold]grace explain topk:ratio=0.01[/]
    """
    found = describe(method)
    if as_json:
        write_json(found)
    else:
        show(table(found))


# ---- what they tell --------------------------------------------------------------------------------------------------
def describe_all() -> list[dict[str, str]]:
    """All registered methods: name, family, recipe with its defaults spelled out, and the first line of their docs."""
    rows = []
    for name in grace.methods():
        summary = documentation(name).partition("\n")[0]
        family = recipe(name).family
        rows.append({"name": name, "family": family, "recipe": as_call(grace.method(name)), "summary": summary})
    return rows


def describe(text: str, shapes: Sequence[tuple[int, ...]] = SHAPES, worlds: Sequence[int] = WORLDS) -> dict[str, Any]:
    """Everything about the method that this string makes.

    Raises:
        UnknownNameError, ConfigurationError: it makes none.
    """
    method = grace.method(text)
    name = recipe(parse(text)[0]).name
    sections = sections_of(documentation(name))
    facts = [
        {"shape": list(shape), **asdict(method.facts(torch.empty(shape, device="meta")))} for shape in shapes
    ]  # fmt: skip
    traffic = [traffic_row(method, shape, world) for shape in shapes for world in worlds]
    return {
        "name": name,
        "family": recipe(name).family,
        "method": grace.spell(method),
        "recipe": repr(method),
        "summary": sections.pop("", ""),
        "sections": sections,
        "facts": facts,
        "traffic": traffic,
        "warnings": warnings_of(traffic),
    }


def sections_of(text: str) -> dict[str, str]:
    """A docstring by its headings; what stands before the first is under the empty name."""
    found: dict[str, list[str]] = {"": []}
    lines = found[""]
    for line in text.splitlines():
        heading = _SECTION.match(line)
        if heading:
            lines = found.setdefault(heading[1], [])
        else:
            lines.append(line)
    return {name: _dedent(block) for name, block in found.items() if any(block)}


def _dedent(lines: list[str]) -> str:
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:].rstrip() for line in lines).strip()


def ring_bytes(n: int, size: int, world: int) -> int:
    """Bytes that a worker sends in a ring all-reduce of n numbers of ``size`` bytes."""
    return math.ceil(2 * (world - 1) * n * size / world)


def traffic_row(method: Method[Any], shape: tuple[int, ...], world: int) -> dict[str, Any]:
    """Rounds and bytes of one exchange, for the worker that sends most; bytes are None where they depend on the data."""
    like = torch.empty(shape, device="meta")
    ranks = sorted({0, 1, world - 1})
    moved = [method.traffic(like, Peer(rank, world)) for rank in ranks if rank < world]
    known = [traffic for traffic in moved if traffic is not None]
    most: Traffic | None = max(known, key=lambda t: t.sent, default=None)
    fp32, bf16 = ring_bytes(like.numel(), 4, world), ring_bytes(like.numel(), 2, world)
    row: dict[str, Any] = {"shape": list(shape), "elements": like.numel(), "workers": world}
    row |= {"rounds": None, "sent_bytes": None, "relative_to_fp32": None, "relative_to_bf16": None}
    if most is not None:
        row |= {"rounds": most.rounds, "sent_bytes": most.sent}
        row |= {"relative_to_fp32": most.sent / fp32, "relative_to_bf16": most.sent / bf16}
    return row


def warnings_of(traffic: Sequence[dict[str, Any]]) -> list[str]:
    """Where a method moves more than a dense all-reduce would."""
    out = []
    for name, key in (("fp32", "relative_to_fp32"), ("bf16", "relative_to_bf16")):
        worse = sorted({row["workers"] for row in traffic if row[key] is not None and row[key] > 1})
        if worse:
            worlds = ", ".join(map(str, worse))
            out.append(f"moves more bytes than a dense {name} all-reduce with {worlds} workers (of those in the table)")
    return out


# ---- for a terminal ---------------------------------------------------------------------------------------------------
def list_table(rows: Sequence[dict[str, str]]) -> RenderableType:
    """The registered methods."""
    lines = plain_table()
    lines.add_column("method", style="bold", no_wrap=True)
    lines.add_column("family", no_wrap=True)
    lines.add_column("what it does")
    lines.add_column("recipe", style="dim")
    for line in rows:
        lines.add_row(line["name"], line["family"], Text(line["summary"]), Text(line["recipe"]))
    return lines


def table(found: dict[str, Any]) -> RenderableType:
    """All about one method."""
    title = Text(found["method"], style="bold") + Text(f"  {found['family']}", style="dim")
    parts: list[RenderableType] = [title, Text(found["summary"]), Text()]
    parts.append(Text("Recipe", style="bold"))
    parts += [Padding(Text(found["recipe"]), (0, 0, 1, 4), expand=False)]
    for name, text in found["sections"].items():
        parts += [Text(name, style="bold"), Padding(Text(text), (0, 0, 1, 4), expand=False)]
    parts += [Text("Claims", style="bold"), Padding(_facts(found["facts"]), (0, 0, 1, 4), expand=False)]
    parts += [
        Text("Traffic of one worker and step", style="bold"),
        Padding(_traffic(found["traffic"]), (0, 0, 0, 4), expand=False),
    ]
    if any(line["sent_bytes"] is None for line in found["traffic"]):
        parts.append(Text("    '-': depends on the data; grace train measures it.", style="dim"))
    parts += [Text(f"Note: {found['method']} {warning}.", style="yellow") for warning in found["warnings"]]
    return Group(*parts)


def _facts(facts: Sequence[dict[str, Any]]) -> Table:
    lines = plain_table()
    for heading in ("tensor", "unbiased", "delta", "omega", "deterministic", "payload"):
        lines.add_column(heading, justify="left" if heading == "tensor" else "right")
    for fact in facts:
        lines.add_row(
            " x ".join(map(str, fact["shape"])),
            "yes" if fact["unbiased"] else "no",
            *("-" if fact[bound] is None else f"{fact[bound]:.4g}" for bound in ("contraction", "variance")),
            "yes" if fact["deterministic"] else "no",
            amount(fact["payload"]),
        )
    return lines


def _traffic(rows: Sequence[dict[str, Any]]) -> Table:
    lines = plain_table()
    for heading in ("tensor", "workers", "rounds", "sent", "vs fp32 all-reduce", "vs bf16 all-reduce"):
        lines.add_column(heading, justify="left" if heading == "tensor" else "right")
    before = None
    for line in rows:
        shape = " x ".join(map(str, line["shape"]))
        cells = []
        for key in ("relative_to_fp32", "relative_to_bf16"):
            more = line[key] is not None and line[key] > 1
            cells.append(Text(("more: " if more else "") + share(line[key]), style="yellow" if more else ""))
        rounds = "-" if line["rounds"] is None else str(line["rounds"])
        lines.add_row(
            "" if shape == before else shape, str(line["workers"]), rounds, amount(line["sent_bytes"]), *cells
        )
        before = shape
    return lines
