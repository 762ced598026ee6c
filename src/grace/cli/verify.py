"""``grace verify``: the laws on one method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from grace.cli.options import Json
from grace.cli.output import show, write_json
from grace.errors import ConfigurationError
from grace.registry import is_own, parse
from grace.registry.discovery import load
from grace.verify import Report
from grace_bench.report.progress import Bar
from grace_command.text import plain_table

_MARKS = {
    "holds": ("holds", "green"), "broken": ("BROKEN", "bold red"), "not promised": ("-", "dim"), "told": ("told", "dim")
}  # fmt: skip
_ALIKE = {"rounding": "to rounding only", "different": "different"}


def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help="module:Class, file.py:Class or a registered name; knobs after a colon: topk:ratio=0.01.",
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws and inputs.")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="More draws, inputs and workers; minutes.")] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="Also compare its means and memories there with the CPU's, to the bit: cuda, cuda:1."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify a method, yours or a registered one: run the laws on it, and say which hold.

    METHOD is a Compressor (which gets the first communicator that accepts it), a Method, or a function that returns one.
    The exit status is 0 if all laws hold, 1 if one is broken or the method does something else on the device, 2 if there is no
    such method or device.

    Example: [bold]grace verify my_method.py:MyMethod[/]
    """
    from grace.verify import NORMAL, QUICK, THOROUGH, verify
    from grace.verify.devices import compare_devices
    from grace.verify.subject import subject
    from grace_bench.devices import device_of

    if quick and thorough:
        raise typer.BadParameter("--quick or --thorough, not both")
    profile = QUICK if quick else THOROUGH if thorough else NORMAL
    try:
        name, knobs = parse(target)
        given = load(name, "method") if is_own(name) and not knobs else target
        there = None if device is None else device_of(device)
        with Bar(Console(stderr=True)) as bar:
            report = verify(given, profile, lambda done, of, name: bar.draw(done, of, name, f"{done} of {of}"))
        alike = None if there is None else compare_devices(subject(given).method, there)
    except ConfigurationError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    different = [name for name, how in (alike or {}).items() if how == "different"]
    if as_json:
        write_json(report.document() | ({} if alike is None else {"device": {"name": device, "inputs": alike}}))
    else:
        show(table(report) if alike is None else Group(table(report), told(str(device), alike)))
    if different:
        typer.echo(f"error: {report.method} does something else on {device}: {', '.join(different)}", err=True)
        raise typer.Exit(1)
    if not report.holds:
        typer.echo(f"error: {report.method} breaks {report.spell_broken()}", err=True)
        raise typer.Exit(1)


def told(device: str, alike: Mapping[str, str]) -> RenderableType:
    """The likeness of a method on a device and on the CPU, in words."""
    counts = Counter(alike.values())
    text = f"{device}: the bits of the CPU for {counts['bits']} of {len(alike)} kinds of input"
    parts = [text, *(f"{counts[how]} {words}" for how, words in _ALIKE.items() if counts[how])]
    return Text(", ".join(parts), style="red" if counts["different"] else "green")


def table(report: Report) -> RenderableType:
    """The laws and their outcomes."""
    parts: list[RenderableType] = [Text(report.method, style="bold")]
    if report.recipe != report.method:
        parts.append(Text(report.recipe, style="dim"))
    if report.wrapped:
        parts.append(Text(f"verified {report.wrapped}", style="dim"))
    if report.composed:
        parts.append(Text(f"and over {', '.join(report.composed)}", style="dim"))
    lines = plain_table()
    lines.add_column("law", no_wrap=True)
    lines.add_column("verdict", no_wrap=True)
    lines.add_column("measured")
    lines.add_column("declared")
    for finding in report.findings:
        word, style = _MARKS[finding.verdict]
        text = "; ".join(filter(None, (finding.measured, finding.detail)))
        lines.add_row(Text(finding.law), Text(word, style=style), Text(text), Text(finding.declared))
    parts += [Text(), lines, Text()]
    count = sum(finding.verdict == "holds" for finding in report.findings)
    verdict = f"{count} laws hold" if report.holds else f"broken: {report.spell_broken()}"
    parts.append(
        Text(f"{verdict} ({report.profile}, {report.seconds:.1f} s)", style="green" if report.holds else "red")
    )
    return Group(*parts)
