"""Tables and notes for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from grace.predict.break_even import speed_text
from grace_bench.extras import TORCH
from grace_bench.report.groups import OVER_LIMIT, Experiment, Spread
from grace_bench.report.predictions import DENSE, Predictions
from grace_bench.report.ranking import MARK, crowns, experiments
from grace_bench.runs.baselines import NO_COMMUNICATION
from grace_bench.runs.results import Document
from grace_command.text import amount, number, plain_table, plural, share


def range_text(values: Spread, digits: int, *, missing: str = "-") -> str:
    """A median with the range over seeds and rounds: ``0.95 (0.94-0.96)``; ``missing`` where there is none."""
    low, median, high = (missing if x is None else f"{x:.{digits}f}" for x in (values.low, values.median, values.high))
    return median if low == high else f"{median} ({low}-{high})"


def _crown(text: str, crowned: bool) -> Text:
    return Text(text + MARK, style="bold green") if crowned else Text(text + " ")


def _quality(group: Experiment) -> str:
    """The quality at the end; a group that exchanges nothing has none."""
    if group.reference:
        return "-"
    return range_text(group.measures["final"], 4, missing="diverged") if group.measured else "not measured"


def _unmeasured(groups: Sequence[Experiment]) -> str:
    """A remark to print first where no run measured a quality; empty where one did."""
    if any(group.measured for group in groups):
        return ""
    runs = sum(len(group.runs) for group in groups)
    return f"0 of {plural(runs, 'run')} measured quality: batches were random, or nothing was evaluated."


def _legend(groups: Sequence[Experiment], crowned: bool) -> str:
    """Help for reading medians, ranges and marks; ``crowned``: whether there are any."""
    many = any(len(group.runs) > 1 for group in groups)
    repeats = "rounds" if any(group.rounds > 1 for group in groups) else "seeds"
    over = (
        f"medians, and the range over the {repeats}"
        if many
        else "step ms: the median and the quartiles of a run's steps"
    )
    mark = f"{MARK}: clearly the best, no other's range touches its own" if crowned else "nobody is clearly the best"
    hint = "" if many else "; a quality is marked where there are several seeds (--seeds 0,1,2)"
    return f"{over}; {mark}{hint}."


def comparison(documents: Sequence[Document]) -> RenderableType:
    """Table with a line for each method, seeds together, and notes on how to read it."""
    groups, failed = experiments(documents)
    parts: list[RenderableType] = [_comparison(groups)] if groups else []
    parts += [
        Text(f"failed: {failure.error}" + (f" (seed {failure.seed})" if failure.seed else ""), style="red")
        for failure in failed
    ]
    return Group(*parts)


def _comparison(groups: Sequence[Experiment]) -> RenderableType:
    first, notes = groups[0].first, dict[str, str]()
    size = f"{first.workers} workers, {first.steps} steps, {first.batch_per_worker} samples each"
    quality = f"test {first.metric}"
    unmeasured = _unmeasured(groups)
    headings = ("method", "seeds", *([] if unmeasured else [quality]), "sent / step", "vs fp32", "codec ms", "exchange ms",
                "step ms")  # fmt: skip
    table = plain_table(f"{first.task}: {size}", headings)
    best, fastest = crowns(groups, "final"), crowns(groups, "step_ms")
    for group in groups:
        why, measures, relative = group.first.optimizer.why, group.measures, group.median("relative")
        mark = notes.setdefault(why, f" [{len(notes) + 1}]") if why else ""
        table.add_row(
            Text(group.label) + Text(mark, style="dim"), str(len(group.runs)),
            *([] if unmeasured else [_crown(_quality(group), id(group) in best)]), amount(group.median("sent")),
            Text(share(relative), style="red" if relative is not None and relative > 1 else ""),
            number(group.median("codec_ms"), 2), number(group.median("exchange_ms"), 2),
            _crown(range_text(measures["step_ms"], 1), id(group) in fastest),
        )  # fmt: skip
    legend = "sent: bytes that one worker's collectives moved; vs fp32: against a ring all-reduce of all gradients."
    model = max((group.first.model for group in groups), key=lambda model: model.compressed_parameters)
    if model.compressed_parameters:
        legend += (
            f" {model.compressed_parameters:,} of {model.parameters:,} parameters are compressed; tensors of "
            "fewer than 1,024 elements or fewer than two dimensions go uncompressed."
        )
    below = [_legend(groups, bool(best | fastest)), legend, *(f"{mark.strip()} {why}" for why, mark in notes.items())]
    return Group(*_first(unmeasured), table, *(Text(text, style="dim") for text in below))


def sweep(documents: Sequence[Document]) -> RenderableType:
    """Table with a line for each experiment, its seeds and rounds together: what it was, its quality, its times, and what the
    link model had predicted; of several rounds, how many times the step without communication of the same round its step took.
    """
    groups, failed = experiments(documents)
    unmeasured = _unmeasured(groups)
    rounds = any(group.rounds > 1 for group in groups)
    headings = ("task", "workers", "link", "method", "runs" if rounds else "seeds", *([] if unmeasured else ["quality"]),
                "sent / step", "vs fp32", *(["processor ms"] if rounds else ["compute ms", "codec ms", "exposed ms"]),
                "step ms", *(["of the limit"] if rounds else ["predicted", "error"]))  # fmt: skip
    table = plain_table(headings=headings, left=4)
    best, fastest = crowns(groups, "final"), crowns(groups, "step_ms")
    for group in groups:
        measures, error = group.measures, group.median("prediction_error")
        table.add_row(
            *_place(group.first), Text(group.label, style="dim" if group.first.kind == "baseline" else ""),
            str(len(group.runs)), *([] if unmeasured else [_crown(_quality(group), id(group) in best)]),
            amount(group.median("sent")), share(group.median("relative")),
            *([range_text(measures["cpu_ms"], 1)] if rounds else
              [number(group.median(name)) for name in ("compute_ms", "codec_ms", "exposed_ms")]),
            _crown(range_text(measures["step_ms"], 1), id(group) in fastest),
            *([range_text(measures[OVER_LIMIT], 2)] if rounds else
              [number(group.median("predicted_ms")), "-" if error is None else f"{100 * error:+.0f} %"]),
        )  # fmt: skip
    for failure in failed:
        table.add_row(
            *_place(failure), Text(failure.method, style="red"), "", Text(f"failed (seed {failure.seed})", style="red")
        )
    legend = _legend(groups, bool(best | fastest)) + _of_the_limit(rounds)
    return Group(*_first(unmeasured), table, Text(legend, style="dim")) if groups else table


def _of_the_limit(rounds: bool) -> str:
    if not rounds:
        return ""
    return (
        f" Of the limit: against {NO_COMMUNICATION} of the same round, so that a machine that changes pace decides nothing. "
        "Processor ms: of one worker in a step, all its threads together, waiting not counted."
    )


def _first(unmeasured: str) -> list[Text]:
    return [Text(unmeasured, style="yellow")] if unmeasured else []


def _place(document: Document) -> tuple[str, str, str]:
    task = document.task if document.toolkit == TORCH else f"{document.task} ({document.toolkit})"
    return task, str(document.workers), document.link.name


def links(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """Speeds asked for and measured."""
    table = plain_table(headings=("link", "asked Mbit/s", "measured Mbit/s", "difference"))
    for row in rows:
        asked, measured = row["asked_bits_per_second"] / 1e6, row["measured_bits_per_second"] / 1e6
        table.add_row(row["link"], f"{asked:,.0f}", f"{measured:,.1f}", f"{100 * row['relative_error']:+.1f} %")
    return table


def predictions(predicted: Predictions) -> RenderableType:
    """Tables of the link model's predictions: one for each network, and which method wins there."""
    parts: list[RenderableType] = []
    for ranking in predicted.tables:
        task = ranking.task if ranking.toolkit == TORCH else f"{ranking.task} ({ranking.toolkit})"
        there = f"measured with {ranking.measured_workers} workers, link {ranking.measured_link}"
        title = f"{task}: {ranking.workers} workers, {ranking.link} ({there})"
        headings = ("rank", "method", "seeds", "step ms", "vs dense", "faster below", "measured")
        table = plain_table(title, headings, left=2)
        for row in ranking.rows:
            table.add_row(
                "" if row.rank is None else str(row.rank), row.method, str(row.seeds),
                _crown(range_text(row.step_ms, 1), row.method == ranking.winner),
                "-" if row.over_dense is None else f"{row.over_dense:.2f}x",
                speed_text(row.break_even_bits_per_second) if ranking.dense and row.method not in DENSE else "-",
                range_text(row.measured_ms, 1),
                style="dim" if row.rank is None else "",
            )  # fmt: skip
        parts += [table, Text(ranking.verdict, style="green" if ranking.winner else "yellow"), Text()]
    legend = (
        "All but the last column is predicted, not measured; ranges are over seeds or, for a single run, over its steps. Vs "
        f"dense and faster below compare with the best of {', '.join(DENSE)} that ran; {MARK}: clearly the first."
    )
    return Group(*parts, Text(legend, style="dim"))
