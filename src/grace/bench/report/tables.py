"""Tables and notes for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grace.bench.compare import Outcome, succeeded


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


def plain_table(title: str | None = None) -> Table:
    """A table without lines."""
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
        table = plain_table(f"{first.task}: {size}")
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
