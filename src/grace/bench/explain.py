"""What a method sends and promises: its documentation, its declared facts, and its traffic beside dense all-reduces."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

import grace
from grace.collectives import Traffic
from grace.knobs import as_call
from grace.method import Method
from grace.peer import Peer
from grace.registry import documentation, parse, recipe

SHAPES = ((64, 64, 3, 3), (1024, 1024), (4096, 4096))  # a convolution, a small and a large matrix
WORLDS = (2, 4, 8, 32, 128)
_SECTION = re.compile(r"^([A-Z][A-Za-z ]*):$")


def listing() -> list[dict[str, str]]:
    """All registered methods: name, family, recipe with its defaults spelled out, and the first line of their docs."""
    rows = []
    for name in grace.methods():
        summary = documentation(name).partition("\n")[0]
        family = recipe(name).family
        rows.append({"name": name, "family": family, "recipe": as_call(grace.method(name)), "summary": summary})
    return rows


def explanation(
    text: str, shapes: Sequence[tuple[int, ...]] = SHAPES, worlds: Sequence[int] = WORLDS
) -> dict[str, Any]:
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
    return {name: _dedented(block) for name, block in found.items() if any(block)}


def _dedented(lines: list[str]) -> str:
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
