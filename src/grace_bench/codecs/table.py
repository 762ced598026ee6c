"""The document on a terminal: how long methods take, and on which links they pay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from grace_bench import machine
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK
from grace_bench.codecs.plan import size_text
from grace_command.text import amount, plain_table, plural, share

HEADINGS = {ENCODE: "encode", FEEDBACK: "encode + memory", DECODE: "decode, sum"}
_NOTE = (
    "In ms, medians. Faster: the link speed below which encoding, moving and decoding take less time than a ring "
    "all-reduce, memory included where the recipe has one; nothing overlaps. Links: times faster than the better of the two."
)


def view(document: dict[str, Any]) -> RenderableType:
    """Everything that a person wants to see."""
    parts: list[RenderableType] = []
    for count in document["plan"]["threads"]:
        for size in document["plan"]["sizes"]:
            place = {"size": size, "threads": count}
            rows = [row for row in document["rows"] if place.items() <= row.items()]
            if rows:
                worth = {row["method"]: row for row in document["worth"] if place.items() <= row.items()}
                parts += [_table(rows, worth, document["plan"]["workers"]), Text()]
    if parts:
        parts += [Text(_NOTE, style="dim"), Text()]
    return Group(*parts, *omissions(document), *footer(document))


def _table(rows: list[dict[str, Any]], worth: dict[str, dict[str, Any]], workers: int) -> RenderableType:
    size, count = rows[0]["size"], rows[0]["threads"]
    table = plain_table(f"{size_text(size)} elements, {workers} workers, {plural(count, 'thread')}")
    table.add_column("method", no_wrap=True)
    links = [entry["link"] for row in worth.values() for entry in row["links"]]
    for heading in (
        *HEADINGS.values(), "moved", "vs fp32", "faster than fp32", "faster than bf16", *dict.fromkeys(links)
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    measured = any("launches" in row for row in rows)
    if measured:
        for heading in HEADINGS.values():
            text = f"{heading}: launches, busy, of a copy's bandwidth what is needed, what passes move"
            table.add_column(text, justify="right")
    for name in dict.fromkeys(row["method"] for row in rows):
        times = {row["operation"]: number(row["microseconds"] / 1000) for row in rows if row["method"] == name}
        cells = [Text(times.get(operation, "-")) for operation in HEADINGS]
        if row := worth.get(name):
            cells += [Text(amount(row["moved_bytes"])), Text(share(row["relative_to_fp32"]))]
            cells += [_speed(row[f"faster_than_{dense}_below"]) for dense in ("fp32", "bf16")]
            cells += [_times(entry["speedup"]) for entry in row["links"]]
        if measured:
            by_operation = {row["operation"]: row for row in rows if row["method"] == name}
            cells += [Text()] * (len(table.columns) - 1 - len(HEADINGS) - len(cells))
            cells += [_of_device(by_operation.get(operation)) for operation in HEADINGS]
        table.add_row(name, *cells)
    return table


def _of_device(row: dict[str, Any] | None) -> Text:
    """Launches, how long the device is busy, and of a copy's bandwidth what has to be moved and what passes move."""
    if row is None or "launches" not in row:
        return Text("-")
    launches = "-" if row["launches"] is None else str(row["launches"])
    shares = ["-" if row[name] is None else share(row[name]) for name in ("bandwidth", "pass_bandwidth")]
    return Text(", ".join([launches, number(row["busy_microseconds"] / 1000), *shares]))


def _speed(bits: float | None) -> Text:
    """The link speed below which something holds."""
    if bits == 0:
        return Text("never", style="red")
    if bits is None:
        return Text("always", style="green")
    size, unit = (bits / 1e9, "Gbit/s") if bits >= 1e9 else (bits / 1e6, "Mbit/s")
    return Text(f"< {number(size)} {unit}")


def _times(factor: float) -> Text:
    return Text(f"{number(factor)}x", style="green" if factor > 1 else "red")


# ---- shared with other tables of such documents ---------------------------------------------------------------------
def number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def omissions(document: dict[str, Any]) -> Iterator[RenderableType]:
    """Lists the methods that are not in the tables, by reason."""
    groups: dict[str, set[str]] = {}
    for omission in document["left_out"]:
        slow = "more than the limit" in omission["why"]
        why = "a run takes longer than the limit" if slow else omission["why"]
        text = " ".join(part for part in (omission["method"], omission["operation"]) if part)
        groups.setdefault(f"{size_text(omission['size'])}: {why}", set()).add(text or "all")
    for why, who in groups.items():
        yield Text(f"left out, {why}: {', '.join(sorted(who))}", style="dim")
    for failure in document["failed"]:
        yield Text(f"failed: {failure['method']}, {failure['size']} elements: {failure['error']}", style="red")


def footer(document: dict[str, Any]) -> Iterator[RenderableType]:
    """The machine, and whether it was busy."""
    environment = document["environment"]
    if machine.is_busy(environment.get("load_before"), environment["cores"]):
        load = f"load {environment['load_before']:.1f} on {environment['cores']} cores"
        yield Text(f"note: the machine was busy ({load}): measure again", style="yellow")
    device = environment.get("device", "cpu")
    where = "" if device == "cpu" else f"{device}; beside it "
    yield Text(
        f"{where}{environment['kernels']} on {environment['processor']}, {environment['cores']} cores; "
        f"torch {environment['torch']}; {document['seconds']:.0f} s",
        style="dim",
    )
