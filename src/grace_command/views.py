"""The output of ``grace list``, ``explain`` and ``tasks``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grace_command.text import amount, plain_table, share


def list_table(rows: Sequence[dict[str, str]], algorithms: Sequence[dict[str, str]]) -> RenderableType:
    """The registered methods, and the algorithms beside them."""
    lines = plain_table()
    lines.add_column("method", style="bold", no_wrap=True)
    lines.add_column("family", no_wrap=True)
    lines.add_column("what it does")
    lines.add_column("the optimizer needs", style="yellow")
    lines.add_column("recipe", style="dim")
    for line in rows:
        lines.add_row(
            line["name"], line["family"], Text(line["summary"]), Text(line["optimizer"]), Text(line["recipe"])
        )
    others = plain_table()
    others.add_column("algorithm", style="bold", no_wrap=True)
    others.add_column("kind", no_wrap=True)
    others.add_column("what it does")
    others.add_column("how it is used", style="dim")
    for line in algorithms:
        others.add_row(line["name"], line["kind"], Text(line["summary"]), Text(line["use"]))
    return Group(
        lines,
        Text(
            "\nauto measures, and chooses one of these for each bucket while you train: grace explain auto\n",
            style="dim",
        ),
        others,
    )


def tasks_table(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """The tasks, and what else ``--task`` and ``--data`` take."""
    table = plain_table(None, ("task", "what it is", "parameters", "tensors", "metric", "better", "batch"), left=2)
    for row in rows:
        size = (f"{row['parameters']:,}", str(row["tensors"]))
        batch = f"{row['batch_in_all']:,} in all" if row["batch_in_all"] else str(row["batch"])
        table.add_row(Text(row["name"], style="bold"), Text(row["about"]), *size, row["metric"], row["better"], batch)
    more = "--data DIR takes the official files, --data synthetic random batches. Your own: module:Class."
    return Group(table, Text(more, style="dim"))


def auto_text(document: dict[str, Any]) -> RenderableType:
    """Settings of ``auto``, and what they mean."""
    parts: list[RenderableType] = [Text(document["settings"], style="bold"), Text(document["summary"]), Text()]
    for name, text in document["sections"].items():
        parts += [Text(name, style="bold"), Padding(Text(text), (0, 0, 1, 4), expand=False)]
    return Group(*parts)


def algorithm_text(document: dict[str, Any]) -> RenderableType:
    """All about one algorithm that is no method."""
    settings = plain_table()
    settings.add_column("setting")
    settings.add_column("value")
    for name, value in document["settings"].items():
        settings.add_row(name, Text(value))
    parts: list[RenderableType] = [
        Text(document["name"], style="bold") + Text(f"  {document['kind']}", style="dim"), Text(document["summary"]), Text(),
    ]  # fmt: skip
    parts += [Text("Use", style="bold"), Padding(Text(document["use"]), (0, 0, 1, 4), expand=False)]
    parts += [Text("Settings", style="bold"), Padding(settings, (0, 0, 1, 4), expand=False)]
    parts += [Text(f"What they mean, and when to take it: {document['page']}")]
    return Group(*parts)


def method_table(document: dict[str, Any]) -> RenderableType:
    """All about one method."""
    title = Text(document["method"], style="bold") + Text(f"  {document['family']}", style="dim")
    parts: list[RenderableType] = [title, Text(document["summary"]), Text()]
    parts.append(Text("Recipe", style="bold"))
    parts += [Padding(Text(document["recipe"]), (0, 0, 1, 4), expand=False)]
    for name, text in document["sections"].items():
        parts += [Text(name, style="bold"), Padding(Text(text), (0, 0, 1, 4), expand=False)]
    if document["optimizer"]["needs"]:
        text = "{needs}: {why}".format(**document["optimizer"])
        parts += [Text("The optimizer needs", style="bold"), Padding(Text(text, "yellow"), (0, 0, 1, 4), expand=False)]
    parts += [Text("Claims", style="bold"), Padding(_facts(document["facts"]), (0, 0, 1, 4), expand=False)]
    if (memory := document["memory"]) is not None:
        text = "keeps {kept:g} times the gradient, at most {most:g} times more are alive in a step".format(**memory)
        parts += [Text("Memory", style="bold"), Padding(Text(text), (0, 0, 1, 4), expand=False)]
    parts += [
        Text("Traffic of one worker and step", style="bold"),
        Padding(_traffic(document["traffic"]), (0, 0, 0, 4), expand=False),
    ]
    if any(line["sent_bytes"] is None for line in document["traffic"]):
        parts.append(Text("    '-': depends on the data; grace train measures it.", style="dim"))
    parts += [Text(f"Note: {document['method']} {warning}.", style="yellow") for warning in document["warnings"]]
    return Group(*parts)


def error_text(document: dict[str, str]) -> RenderableType:
    """Formats the advice about an error."""
    return Group(Text(document["error"], style="bold"), Text(document["about"]))


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
