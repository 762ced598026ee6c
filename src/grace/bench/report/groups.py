"""From runs to what is drawn: repeats over seeds become one group with a median and a range, and fronts are marked."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grace.bench.baselines import NO_COMMUNICATION
from grace.bench.report.read import Run
from grace.bench.results import Result

POINTS = 120  # of a curve, at most; a screen shows no more
MEASURES = {  # of a group, and the columns of the table of runs that they are from
    "final": "final", "best": "best", "throughput": "samples_per_second", "step_ms": "step_ms",
    "compute_ms": "compute_ms", "codec_ms": "codec_ms", "exchange_ms": "exchange_ms", "exposed_ms": "exposed_ms",
    "sent": "sent_bytes_per_step", "relative": "relative_to_fp32", "nic_sent": "nic_sent_bytes_per_step",
    "peak_bytes": "peak_rss_bytes", "total_seconds": "total_seconds", "target_seconds": "target_seconds",
    "predicted_ms": "predicted_step_ms", "prediction_error": "prediction_error",
}  # fmt: skip
_STRICT = ("final", "best", "target_seconds")  # where nothing is worse than any number
# What makes two runs different experiments rather than one with two seeds. The order is that of telling them apart.
_PLACE = ("task", "workers", "link", "link_bits_per_second", "link_latency_seconds", "transport")
_SETTINGS = {
    "granularity": "{}", "steps": "{} steps", "batch_per_worker": "batch {}", "optimizer_peak_lr": "lr {:g}", "data": "{}",
    "data_source": "{}", "parameters": "{} parameters", "metric": "{}", "environment_system": "{}",
    "environment_cores": "{} cores", "environment_threads_per_worker": "{} threads per worker",
}  # fmt: skip


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
    measures: Mapping[str, Spread]
    reached: int
    curve: Curve
    front_throughput: bool = False
    front_sent: bool = False

    @property
    def first(self) -> Result:
        """Any of its runs, for what they share."""
        return result_of(self.runs[0])

    def median(self, measure: str) -> float | None:
        """Over the seeds."""
        return self.measures[measure].median

    @property
    def reference(self) -> bool:
        """Whether it exchanges nothing: the limit for speed, but no way to train."""
        return self.first.method == NO_COMMUNICATION


def result_of(run: Run) -> Result:
    """The result of a run that has one."""
    assert isinstance(run.document, Result)
    return run.document


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
    results = [result_of(run) for run in runs]
    metric, higher = results[0].metric, results[0].better == "higher"
    by_step = [{float(point.step): point for point in one.curve} for one in results]
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


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[tuple[str, str]]]:
    """Groups of the runs that succeeded, and the files left out: of two runs that differ in nothing, the older."""
    there = [run for run in runs if isinstance(run.document, Result)]
    latest = {(*_key(run), run.document.seed): run for run in sorted(there, key=lambda run: run.document.created)}
    kept = {run.file for run in latest.values()}
    newer = "a newer run of the same configuration and seed is there"
    older = [(run.file, newer) for run in there if run.file not in kept]
    experiments: dict[tuple[object, ...], list[Run]] = {}
    for run in latest.values():
        experiments.setdefault(_key(run), []).append(run)
    labels = _label([repeats[0] for repeats in experiments.values()])
    groups = [
        _group(sorted(repeats, key=lambda run: run.document.seed), label)
        for repeats, label in zip(experiments.values(), labels, strict=True)
    ]
    return _mark_fronts(groups), older


def _key(run: Run) -> tuple[object, ...]:
    return tuple(run.row[name] for name in (*_PLACE, "method", "kind", *_SETTINGS))


def place(run: Run) -> tuple[object, ...]:
    """Where methods compete: one task on one network with so many workers."""
    return tuple(run.row[name] for name in _PLACE)


def _label(runs: Sequence[Run]) -> list[str]:
    """The method's name, with the settings in which others of this name at the same place differ."""
    namesakes: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        namesakes.setdefault((place(run), run.document.method), []).append(run)
    labels = []
    for run in runs:
        others = namesakes[place(run), run.document.method]
        differ = [name for name in _SETTINGS if len({other.row[name] for other in others}) > 1]
        said = [_SETTINGS[name].format(value) for name in differ if (value := run.row[name]) is not None]
        labels.append(run.document.method + (f" ({', '.join(said)})" if said else ""))
    return labels


def _group(runs: list[Run], label: str) -> Group:
    higher = result_of(runs[0]).better == "higher"
    measures = {}
    for name, column in MEASURES.items():
        up = higher if name in ("final", "best") else name != "target_seconds"
        measures[name] = spread((run.row[column] for run in runs), higher=up, strict=name in _STRICT)
    reached = sum(run.row["target_seconds"] is not None for run in runs)
    return Group(tuple(runs), label, measures, reached, curve_of(runs))


def _mark_fronts(groups: list[Group]) -> list[Group]:
    """Marks those on the fronts of their place: quality against throughput, and against bytes."""
    places: dict[tuple[object, ...], list[int]] = {}
    for index, group in enumerate(groups):
        if group.median("final") is not None and not group.reference:
            places.setdefault((place(group.runs[0]), group.first.metric), []).append(index)
    marks: dict[str, set[int]] = {}
    for measure, sign in (("throughput", -1), ("sent", 1)):
        marks[measure] = set()
        for members in places.values():
            there = [i for i in members if groups[i].median(measure) is not None]
            points = [(sign * (groups[i].median(measure) or 0.0), _quality(groups[i])) for i in there]
            marks[measure] |= {there[k] for k in pareto(points)}
    return [
        dataclasses.replace(group, front_throughput=i in marks["throughput"], front_sent=i in marks["sent"])
        for i, group in enumerate(groups)
    ]


def _quality(group: Group) -> float:
    """Final quality, such that more is better."""
    final = group.median("final") or 0.0
    return final if group.first.better == "higher" else -final
