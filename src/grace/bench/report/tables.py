"""Tables and notes for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grace.bench.results import Document, Failure, Result


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


def plain_table(title: str | None = None, headings: Sequence[str] = (), *, left: int = 1) -> Table:
    """A table without lines; the first columns are aligned left, numbers right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < left else "right")
    return table


def comparison(documents: Sequence[Document]) -> RenderableType:
    """One line for each method, and what one must know to read it."""
    results = [one for one in documents if isinstance(one, Result)]
    parts: list[RenderableType] = [_comparison(results)] if results else []
    parts += [Text(f"failed: {one.error}", style="red") for one in documents if isinstance(one, Failure)]
    return Group(*parts)


def _comparison(results: Sequence[Result]) -> RenderableType:
    first, notes = results[0], dict[str, str]()
    size = f"{first.workers} workers, {first.steps} steps, {first.batch_per_worker} samples each"
    quality = f"test {first.metric}"
    headings = ("method", quality, "sent / step", "vs fp32", "codec ms", "exchange ms", "step ms (quartiles)")
    table = plain_table(f"{first.task}: {size}", headings)
    for one in results:
        why, times, step, relative = one.optimizer.why, one.time, one.time.step_ms, one.traffic.relative_to_fp32
        mark = notes.setdefault(why, f" [{len(notes) + 1}]") if why else ""
        table.add_row(
            Text(one.method) + Text(mark, style="dim"), "diverged" if one.final is None else f"{one.final:.4f}",
            amount(one.traffic.sent_bytes_per_step),
            Text(share(relative), style="red" if relative is not None and relative > 1 else ""),
            number(times.codec_ms, 2), number(times.exchange_ms, 2),
            f"{step.median:.1f} ({step.low:.1f}-{step.high:.1f})",
        )  # fmt: skip
    legend = "sent: bytes that one worker's collectives moved; vs fp32: against a ring all-reduce of all gradients."
    model = max((one.model for one in results), key=lambda model: model.compressed_parameters)
    if model.compressed_parameters:
        legend += (
            f" {model.compressed_parameters:,} of {model.parameters:,} parameters are compressed; tensors of "
            "fewer than 1,024 elements or fewer than two dimensions go uncompressed."
        )
    told = [Text(f"{mark.strip()} {why}", style="dim") for why, mark in notes.items()]
    return Group(table, Text(legend, style="dim"), *told)


def sweep(documents: Sequence[Document]) -> RenderableType:
    """One line for each run: what it was, its quality, its times, and what the link model had predicted."""
    headings = ("task", "workers", "link", "method", "quality", "sent / step", "vs fp32", "compute ms", "codec ms",
                "exposed ms", "step ms", "predicted", "error")  # fmt: skip
    table = plain_table(headings=headings, left=4)
    for one in documents:
        name = (one.task, str(one.workers), one.link.name)
        if not isinstance(one, Result):
            table.add_row(*name, Text(one.method, style="red"), Text("failed", style="red"))
            continue
        times, traffic, prediction = one.time, one.traffic, one.prediction
        error = None if prediction is None else prediction.relative_error
        table.add_row(
            *name, Text(one.method, style="dim" if one.kind == "baseline" else ""), number(one.final, 4),
            amount(traffic.sent_bytes_per_step), share(traffic.relative_to_fp32), number(times.compute_ms),
            number(times.codec_ms), number(times.exposed_ms), number(times.step_ms.median),
            number(None if prediction is None else prediction.step_ms), "-" if error is None else f"{100 * error:+.0f} %",
        )  # fmt: skip
    return table


def links(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """Speeds asked for and measured."""
    table = plain_table(headings=("link", "asked Mbit/s", "measured Mbit/s", "difference"))
    for row in rows:
        asked, found = row["asked_bits_per_second"] / 1e6, row["measured_bits_per_second"] / 1e6
        table.add_row(row["link"], f"{asked:,.0f}", f"{found:,.1f}", f"{100 * row['relative_error']:+.1f} %")
    return table


def predictions(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """What the link model predicts."""
    headings = ("task", "method", "workers", "link", "predicted step ms", "measured")
    table = plain_table(headings=headings, left=2)
    for row in rows:
        measured = row["measured"]
        found = f"{measured['step_ms']:.1f} ({measured['workers']} workers, {measured['link']})"
        table.add_row(row["task"], row["method"], str(row["workers"]), row["link"], f"{row['step_ms']:.1f}", found)
    return table
