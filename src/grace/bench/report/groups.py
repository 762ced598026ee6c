"""From runs to what is drawn: repeats over seeds become one group with a median and a range, and fronts are marked."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grace.bench.baselines import NO_COMMUNICATION
from grace.bench.report.read import Run

POINTS = 120  # of a curve, at most; a screen shows no more
# What makes two runs different experiments rather than one with two seeds. The order is that of telling them apart.
_PLACE = ("task", "workers", "link", "bits_per_second", "latency_seconds", "transport")
_SETTINGS = ("granularity", "steps", "batch", "lr", "data", "source", "parameters", "metric", "machine")
_UNITS = {"steps": "{} steps", "batch": "batch {}", "lr": "lr {:g}", "parameters": "{} parameters"}


@dataclass(frozen=True, slots=True)
class Spread:
    """A median over seeds and the range around it; None where too many seeds have no value."""

    median: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Quality over a run: medians over seeds at the evaluations that all seeds have, and the range of quality."""

    step: list[float]
    epoch: list[float]
    seconds: list[float]
    quality: list[Spread]
    evaluations: int


@dataclass(frozen=True, slots=True)
class Group:
    """One experiment: runs that differ in nothing but their seed. ``label`` tells it from others at its place."""

    runs: tuple[Run, ...]
    label: str
    final: Spread
    best: Spread
    throughput: Spread
    step_ms: Spread
    compute_ms: Spread
    codec_ms: Spread
    exchange_ms: Spread
    exposed_ms: Spread
    sent: Spread
    relative: Spread
    nic_sent: Spread
    peak_bytes: Spread
    total_seconds: Spread
    target_seconds: Spread
    reached: int
    predicted_ms: Spread
    prediction_error: Spread
    curve: Curve
    front_throughput: bool = False
    front_sent: bool = False

    @property
    def first(self) -> Run:
        """Any of its runs, for what they share."""
        return self.runs[0]

    @property
    def reference(self) -> bool:
        """Whether it exchanges nothing: the limit for speed, but no way to train."""
        return self.first.method == NO_COMMUNICATION


def spread(values: Iterable[float | None], *, higher: bool = True, strict: bool = False) -> Spread:
    """Median and range.

    Args:
        values: one for each seed.
        higher: whether a large value is a good one.
        strict: None counts as the worst value there is (a run that diverged, a target that was missed) instead of
            being left out (a measure that was not taken).

    >>> spread([3, 1, 2])
    Spread(median=2, low=1, high=3)
    >>> spread([0.9, None, 0.8], strict=True)
    Spread(median=0.8, low=None, high=0.9)
    >>> spread([None])
    Spread(median=None, low=None, high=None)
    """
    given = list(values)
    there = sorted(value for value in given if value is not None)
    if not there:
        return Spread(None, None, None)
    if not strict or len(there) == len(given):
        return Spread(statistics.median(there), there[0], there[-1])
    missing: list[float | None] = [None] * (len(given) - len(there))
    ordered: list[float | None] = [*missing, *there] if higher else [*there, *missing]
    middles = [ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]]
    known = [value for value in middles if value is not None]
    median = statistics.median(known) if len(known) == 2 else None
    return Spread(median, ordered[0], ordered[-1])


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other beats: ``(cost, value)``, the cost to be low and the value high.

    A point is beaten by one that is no worse in both and better in one. Equal points stay together. In order of cost.

    >>> pareto([(1, 1), (2, 3), (3, 2), (2, 3)])
    [0, 1, 3]
    """
    kept: list[int] = []
    best, at = -float("inf"), 0.0
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        cost, value = points[index]
        if value > best or (kept and (cost, value) == (at, best)):
            kept.append(index)
            best, at = value, cost
    return kept


def thin(values: Sequence[float | None], limit: int = POINTS) -> list[int]:
    """Indices of at most ``limit`` values that keep the shape: first, last, and the extremes of each stretch between.

    >>> thin([0, 1, 9, 1, 0, 1, -9, 1, 0], limit=6)
    [0, 1, 2, 5, 6, 8]
    """
    size = len(values)
    if size <= limit:
        return list(range(size))
    kept = {0, size - 1}
    stretches = (limit - 2) // 2
    for k in range(stretches):
        start, stop = 1 + k * (size - 2) // stretches, 1 + (k + 1) * (size - 2) // stretches
        there = [i for i in range(start, stop) if values[i] is not None]
        if there:
            kept |= {min(there, key=lambda i: values[i] or 0.0), max(there, key=lambda i: values[i] or 0.0)}
        else:
            kept.add(start)  # a gap stays a gap
    return sorted(kept)


def curve_of(runs: Sequence[Run], limit: int = POINTS) -> Curve:
    """The curve of runs that differ in their seed only."""
    metric, higher = runs[0].metric, runs[0].higher
    by_step = [{float(point.step): point for point in run.curve} for run in runs]
    steps = sorted(set.intersection(*(set(points) for points in by_step)))
    rows = [[points[step] for points in by_step] for step in steps]
    quality = [spread((point.metrics.get(metric) for point in row), higher=higher, strict=True) for row in rows]
    kept = thin([one.median for one in quality], limit)
    return Curve(
        [steps[i] for i in kept],
        [statistics.median(point.epoch for point in rows[i]) for i in kept],
        [statistics.median(point.seconds for point in rows[i]) for i in kept],
        [quality[i] for i in kept],
        len(steps),
    )


def grouped(runs: Sequence[Run]) -> tuple[list[Group], list[tuple[str, str]]]:
    """Groups of the runs that succeeded, and the files left out: of two runs that differ in nothing, the older."""
    latest: dict[tuple[object, ...], Run] = {}
    for run in sorted((run for run in runs if run.error is None), key=lambda run: run.created):
        latest[_key(run), run.seed] = run
    kept = {run.file for run in latest.values()}
    older = [(run.file, "a newer run of the same configuration and seed is there") for run in runs
             if run.error is None and run.file not in kept]  # fmt: skip
    experiments: dict[tuple[object, ...], list[Run]] = {}
    for run in latest.values():
        experiments.setdefault(_key(run), []).append(run)
    labels = _labels([repeats[0] for repeats in experiments.values()])
    groups = [
        _group(sorted(repeats, key=lambda run: run.seed), label)
        for repeats, label in zip(experiments.values(), labels, strict=True)
    ]
    return _marked(groups), older


def _key(run: Run) -> tuple[object, ...]:
    return tuple(getattr(run, name) for name in (*_PLACE, "method", "baseline", *_SETTINGS))


def place(run: Run) -> tuple[object, ...]:
    """Where methods compete: one task on one network with so many workers."""
    return tuple(getattr(run, name) for name in _PLACE)


def _labels(runs: Sequence[Run]) -> list[str]:
    """The method's name, with the settings in which others of this name at the same place differ."""
    namesakes: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        namesakes.setdefault((place(run), run.method), []).append(run)
    labels = []
    for run in runs:
        others = namesakes[place(run), run.method]
        differ = [name for name in _SETTINGS if len({getattr(other, name) for other in others}) > 1]
        said = [_UNITS.get(name, "{}").format(value) for name in differ if (value := getattr(run, name)) is not None]
        labels.append(run.method + (f" ({', '.join(said)})" if said else ""))
    return labels


def _group(runs: list[Run], label: str) -> Group:
    higher = runs[0].higher

    errors = [
        run.predicted_ms / run.step_ms - 1 if run.predicted_ms is not None and run.step_ms else None for run in runs
    ]
    measures: dict[str, Any] = {
        name: spread(getattr(run, name) for run in runs)
        for name in (
            "throughput", "step_ms", "compute_ms", "codec_ms", "exchange_ms", "exposed_ms", "sent", "relative", "nic_sent",
            "peak_bytes", "total_seconds", "predicted_ms",
        )
    }  # fmt: skip
    return Group(
        tuple(runs),
        label,
        final=spread((run.final for run in runs), higher=higher, strict=True),
        best=spread((run.best for run in runs), higher=higher, strict=True),
        target_seconds=spread((run.target_seconds for run in runs), higher=False, strict=True),
        reached=sum(run.target_seconds is not None for run in runs),
        prediction_error=spread(errors),
        curve=curve_of(runs),
        **measures,
    )


def _marked(groups: list[Group]) -> list[Group]:
    """With those on the fronts of their place marked: quality against throughput, and against bytes."""
    places: dict[tuple[object, ...], list[int]] = {}
    for index, group in enumerate(groups):
        if group.final.median is not None and not group.reference:
            places.setdefault((place(group.first), group.first.metric), []).append(index)
    marks: dict[str, set[int]] = {}
    costs: dict[str, Callable[[Group], float | None]] = {
        "front_throughput": lambda group: None if (value := group.throughput.median) is None else -value,
        "front_sent": lambda group: group.sent.median,
    }
    for name, cost in costs.items():
        marks[name] = set()
        for members in places.values():
            there = [
                (i, c, q)
                for i in members
                if (c := cost(groups[i])) is not None and (q := _value(groups[i])) is not None
            ]
            marks[name] |= {there[k][0] for k in pareto([(c, q) for _, c, q in there])}
    return [
        dataclasses.replace(group, front_throughput=i in marks["front_throughput"], front_sent=i in marks["front_sent"])
        for i, group in enumerate(groups)
    ]


def _value(group: Group) -> float | None:
    """Final quality, such that more is better."""
    final = group.final.median
    return final if final is None or group.first.higher else -final
