"""Tables and notes for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grace.bench.compare import Outcome, succeeded
from grace.verify import Report


def amount(size: float | None) -> str:
    """Bytes for people, in powers of 1,000, as network speeds are: ``114 kB``."""
    if size is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            digits = 0 if unit == "B" or size >= 99.95 else 1 if size >= 9.995 else 2
            return f"{size:.{digits}f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def number(value: float | None, digits: int = 1) -> str:
    """A number with so many digits; ``-`` where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def share(relative: float | None) -> str:
    """A volume relative to another: ``12.1 %``."""
    if relative is None:
        return "-"
    percent = 100 * relative
    if 99.95 <= percent < 100.05 and percent != 100:
        return f"{percent:.2f} %"  # so that a little more than all is not told as all
    return f"{percent:,.0f} %" if percent >= 99.95 else f"{percent:.3g} %"


def _table(title: str | None = None) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")


def comparison(outcomes: Sequence[Outcome]) -> RenderableType:
    """One line for each method, and what one must know to read it."""
    results = succeeded(outcomes)
    parts: list[RenderableType] = []
    notes: dict[str, str] = {}
    if results:
        first = results[0]
        metric = first.metric
        model = max((result.model for result in results), key=lambda m: m.compressed_parameters)
        size = f"{first.workers} workers, {first.steps} steps, {first.batch_per_worker} samples each"
        table = _table(f"{first.task}: {size}")
        table.add_column("method")
        for heading in (f"test {metric}", "sent / step", "vs fp32", "codec ms", "exchange ms", "step ms (quartiles)"):
            table.add_column(heading, justify="right")
        for result in results:
            why, times, step = result.optimizer.why, result.time, result.time.step_ms
            mark = notes.setdefault(why, f" [{len(notes) + 1}]") if why else ""
            value = "diverged" if result.final is None else f"{result.final:.4f}"
            relative = result.traffic.relative_to_fp32
            table.add_row(
                Text(result.method) + Text(mark, style="dim"), value, amount(result.traffic.sent_bytes_per_step),
                Text(share(relative), style="red" if relative is not None and relative > 1 else ""),
                number(times.codec_ms, 2), number(times.exchange_ms, 2),
                f"{step.median:.1f} ({step.low:.1f}-{step.high:.1f})",
            )  # fmt: skip
        parts.append(table)
        legend = "sent: bytes that one worker's collectives moved; vs fp32: against a ring all-reduce of all gradients."
        if model.compressed_parameters:
            legend += (
                f" {model.compressed_parameters:,} of {model.parameters:,} parameters are compressed; tensors of "
                "fewer than 1,024 elements or fewer than two dimensions go uncompressed."
            )
        parts.append(Text(legend, style="dim"))
        parts += [Text(f"{mark.strip()} {why}", style="dim") for why, mark in notes.items()]
    for outcome in outcomes:
        if outcome.error is not None:
            parts.append(Text(f"failed: {outcome.error}", style="red"))
    return Group(*parts)


def listing(rows: Sequence[dict[str, str]]) -> RenderableType:
    """The registered methods."""
    table = _table()
    table.add_column("method", style="bold", no_wrap=True)
    table.add_column("family", no_wrap=True)
    table.add_column("what it does")
    table.add_column("recipe", style="dim")
    for line in rows:
        table.add_row(line["name"], line["family"], Text(line["summary"]), Text(line["recipe"]))
    return table


def explanation(found: dict[str, Any]) -> RenderableType:
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
    table = _table()
    for heading in ("tensor", "unbiased", "delta", "omega", "deterministic", "payload"):
        table.add_column(heading, justify="left" if heading == "tensor" else "right")
    for fact in facts:
        table.add_row(
            " x ".join(map(str, fact["shape"])),
            "yes" if fact["unbiased"] else "no",
            *("-" if fact[bound] is None else f"{fact[bound]:.4g}" for bound in ("contraction", "variance")),
            "yes" if fact["deterministic"] else "no",
            amount(fact["payload"]),
        )
    return table


def _traffic(rows: Sequence[dict[str, Any]]) -> Table:
    table = _table()
    for heading in ("tensor", "workers", "rounds", "sent", "vs fp32 all-reduce", "vs bf16 all-reduce"):
        table.add_column(heading, justify="left" if heading == "tensor" else "right")
    before = None
    for line in rows:
        shape = " x ".join(map(str, line["shape"]))
        cells = []
        for key in ("relative_to_fp32", "relative_to_bf16"):
            more = line[key] is not None and line[key] > 1
            cells.append(Text(("more: " if more else "") + share(line[key]), style="yellow" if more else ""))
        rounds = "-" if line["rounds"] is None else str(line["rounds"])
        table.add_row(
            "" if shape == before else shape, str(line["workers"]), rounds, amount(line["sent_bytes"]), *cells
        )
        before = shape
    return table


def overhead(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """What Grace itself costs, beside the goals."""
    table = _table("what Grace itself costs")
    table.add_column("operation")
    for heading in ("measured", "quartiles", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in rows:
        met = line["value"] <= line["goal"]
        table.add_row(
            Text(line["operation"]),
            Text(f"{line['value']:.3g} {line['unit']}".strip(), style="green" if met else "yellow"),
            f"{line['low']:.3g} to {line['high']:.3g}",
            f"<= {line['goal']:g}",
        )
    return table


_MARKS = {
    "holds": ("holds", "green"), "broken": ("BROKEN", "bold red"), "not promised": ("-", "dim"), "told": ("told", "dim")
}  # fmt: skip


def verification(report: Report) -> RenderableType:
    """The laws, and what became of them."""
    parts: list[RenderableType] = [Text(report.method, style="bold")]
    if report.recipe != report.method:
        parts.append(Text(report.recipe, style="dim"))
    if report.wrapped:
        parts.append(Text(f"verified {report.wrapped}", style="dim"))
    table = _table()
    table.add_column("law", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("measured")
    table.add_column("declared")
    for finding in report.findings:
        word, style = _MARKS[finding.verdict]
        text = "; ".join(filter(None, (finding.measured, finding.detail)))
        table.add_row(Text(finding.law), Text(word, style=style), Text(text), Text(finding.declared))
    parts += [Text(), table, Text()]
    count = sum(finding.verdict == "holds" for finding in report.findings)
    verdict = f"{count} laws hold" if report.holds else f"broken: {', '.join(report.broken)}"
    parts.append(
        Text(f"{verdict} ({report.profile}, {report.seconds:.1f} s)", style="green" if report.holds else "red")
    )
    return Group(*parts)
