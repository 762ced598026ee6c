"""Predictions for other networks from a sweep's results, seeds together and ranked: ``grace bench predict``, as a document."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from grace.predict.break_even import break_even
from grace.predict.links import MOST, Link
from grace_bench.report.groups import Experiment, Spread, place, spread
from grace_bench.report.ranking import experiments, leaders
from grace_bench.runs.forecast import forecast
from grace_bench.runs.results import Document

DENSE = ("ddp-fp32", "none", "ddp-bf16", "bf16")  # what needs no compression, or a cast only


class PredictionRow(msgspec.Struct, frozen=True):
    """A method.

    Attributes:
        rank: 1 is the fastest by its median; null: the limit, which exchanges nothing. method: told apart from namesakes.
        step_ms: predicted, over the seeds. measured_ms: where it ran.
        over_dense: how many times as fast as the best dense one. break_even_bits_per_second: the link under which it is
            faster than that; null: none, or nothing to compare with; 400e9: any.
    """

    rank: int | None
    method: str
    seeds: int
    step_ms: Spread
    measured_ms: Spread
    over_dense: float | None
    break_even_bits_per_second: float | None


class PredictionTable(msgspec.Struct, frozen=True):
    """Predictions for one network.

    Attributes:
        measured_workers, measured_link: where the runs were that this is predicted from.
        dense: the best method without compression here; null: none ran.
        winner: who is clearly the fastest; null: the ranges of ``ahead`` touch, which have the fastest median first.
    """

    task: str
    toolkit: str
    workers: int
    link: str
    measured_workers: int
    measured_link: str
    dense: str | None
    winner: str | None
    ahead: list[str]
    verdict: str
    rows: list[PredictionRow]


class Predictions(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``grace bench predict --json``. left_out: methods without what the link model needs."""

    schema: Literal["grace.predictions"] = "grace.predictions"
    version: Literal[1] = 1
    cores: float
    tables: list[PredictionTable]
    left_out: list[str]


class _Method:
    """A method that can be predicted: the seconds of its seeds over a link, for one number of workers after the other."""

    def __init__(self, group: Experiment, models: Sequence[Callable[[Link, int], float]]):
        self.group, self.models, self.label = group, models, group.label

    def step_ms(self, link: Link, workers: int) -> Spread:
        """Over seeds; of one run, the range that its steps had, as a share."""
        predicted = spread(1000 * model(link, workers) for model in self.models)
        was = self.group.measures["step_ms"]
        if len(self.models) > 1 or not (
            predicted.median and was.median and was.low is not None and was.high is not None
        ):
            return predicted
        return Spread(
            predicted.median, predicted.median * was.low / was.median, predicted.median * was.high / was.median
        )

    def seconds(self, link: Link, workers: int) -> float:
        """The median over seeds."""
        return statistics.median(model(link, workers) for model in self.models)


def predict(documents: Sequence[Document], links: Sequence[Link], workers: Sequence[int], cores: float) -> Predictions:
    """A ranked table for each place where runs were measured, link and number of workers."""
    places: dict[tuple[object, ...], list[_Method]] = {}
    left_out = []
    groups, failed = experiments(documents)
    for group in groups:
        models = [model for run in group.runs if (model := forecast(run.document, cores)) is not None]
        if models:
            places.setdefault(place(group.runs[0]), []).append(_Method(group, models))
        else:
            left_out.append(group.label)
    left_out += [failure.method for failure in failed]
    tables = [_table(rivals, network, world) for rivals in places.values() for world in workers for network in links]
    return Predictions(cores=cores, tables=tables, left_out=list(dict.fromkeys(left_out)))


def _table(rivals: Sequence[_Method], link: Link, world: int) -> PredictionTable:
    order = sorted(rivals, key=lambda rival: (rival.group.reference, rival.seconds(link, world)))
    racing = [rival for rival in order if not rival.group.reference]
    ranges = [rival.step_ms(link, world) for rival in order]
    ahead = [racing[at].label for at in leaders(ranges[: len(racing)], higher=False)]
    winner = ahead[0] if len(ahead) == 1 and len(racing) > 1 else None
    plain = [rival for rival in racing if rival.group.first.method in DENSE]
    best = min(plain, key=lambda rival: rival.seconds(link, world), default=None)
    rows = []
    for at, rival in enumerate(order):
        is_compressed = rival.group.first.method not in DENSE and not rival.group.reference
        rows.append(
            PredictionRow(
                at + 1 if at < len(racing) else None, rival.label, len(rival.models), ranges[at],
                rival.group.measures["step_ms"],
                best.seconds(link, world) / rival.seconds(link, world) if best is not None else None,
                _break_even(rival, plain, link, world) if is_compressed and plain else None,
            )
        )  # fmt: skip
    first = rivals[0].group.first
    return PredictionTable(
        first.task, first.toolkit, world, str(link), first.workers, first.link.name, None if best is None else best.label,
        winner, ahead, _verdict(ahead, winner, rows, best), rows,
    )  # fmt: skip


def _break_even(rival: _Method, plain: Sequence[_Method], link: Link, world: int) -> float | None:
    speed = break_even(
        lambda there: rival.seconds(there, world),
        lambda there: min(other.seconds(there, world) for other in plain),
        link.latency,
    )
    return MOST if speed == math.inf else speed


def _verdict(ahead: Sequence[str], winner: str | None, rows: Sequence[PredictionRow], best: _Method | None) -> str:
    if not ahead:
        return "nothing to rank"
    if winner is None and len(ahead) == 1:
        return f"only {ahead[0]} was measured: nothing to rank"
    if winner is None:
        return f"no clear winner: the ranges of {', '.join(ahead)} touch"
    row = rows[0]
    gain = "" if best is None or best.label == winner else f", {row.over_dense:.2f} times as fast as {best.label}"
    return f"{winner} wins: {row.step_ms.median:.1f} ms{gain}"
