"""From runs to what is drawn: repeats over seeds and rounds become one group with a median and a range; fronts are marked."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grace_bench.report.read import Run
from grace_bench.runs.baselines import NO_COMMUNICATION
from grace_bench.runs.results import Result, Times

POINTS = 120  # of a curve, at most; a screen shows no more
MEASURES = {  # of a group, and the columns of the table of runs that they come from
    "final": "final", "best": "best", "throughput": "samples_per_second", "step_ms": "step_ms",
    "compute_ms": "compute_ms", "codec_ms": "codec_ms", "exchange_ms": "exchange_ms", "exposed_ms": "exposed_ms",
    "sent": "sent_bytes_per_step", "relative": "relative_to_fp32", "nic_sent": "nic_sent_bytes_per_step",
    "peak_bytes": "peak_rss_bytes", "total_seconds": "total_seconds", "target_seconds": "target_seconds",
    "predicted_ms": "predicted_step_ms", "prediction_error": "prediction_error", "cpu_ms": "cpu_ms",
}  # fmt: skip
OVER_LIMIT = "over_limit"  # a step, in those of the same round without communication
_FP32 = "ddp-fp32", "none"  # what others are compared with: the first one that ran
_STRICT = ("final", "best", "target_seconds")  # where None is worse than any number
# What makes two runs different experiments rather than repeats of one. The order is that of telling them apart.
_PLACE = ("task", "toolkit", "workers", "link", "link_bits_per_second", "link_latency_seconds", "transport")
_SETTINGS = {
    "granularity": "{}", "steps": "{} steps", "batch_per_worker": "batch {}", "optimizer_peak_lr": "lr {:g}", "data": "{}",
    "data_source": "{}", "parameters": "{} parameters", "metric": "{}", "environment_system": "{}",
    "environment_cores": "{} cores", "environment_threads_per_worker": "{} threads per worker",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """A median over seeds and rounds, and the range around it; None where too many have no value."""

    median: float | None
    low: float | None
    high: float | None

    def ahead(self, other: Spread, *, higher: bool) -> bool:
        """True if its whole range is better than the other's whole range; None counts as the worst.

        >>> Spread(3, 2, 4).ahead(Spread(1, 0, 2), higher=True), Spread(3, 2.5, 4).ahead(Spread(1, 0, 2), higher=True)
        (False, True)
        """
        worst = -math.inf if higher else math.inf
        own, its = (self.low, other.high) if higher else (self.high, other.low)
        own, its = (worst if bound is None else bound for bound in (own, its))
        return own > its if higher else own < its


@dataclass(frozen=True, slots=True)
class Curve:
    """Quality over a run: medians over seeds at the evaluations that all seeds have, and the range of quality."""

    step: list[float]
    epoch: list[float]
    seconds: list[float]
    quality: list[Spread]
    evaluations: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment: runs that differ in nothing but their seed or round. ``label`` tells it from others at its place.

    ``fp32``: whether it is what others at its place are held against.
    """

    runs: tuple[Run, ...]
    label: str
    measures: Mapping[str, Spread]
    reached: int
    curve: Curve
    front_throughput: bool = False
    front_sent: bool = False
    fp32: bool = False

    @property
    def first(self) -> Result:
        """Any of its runs, for what they share."""
        return result_of(self.runs[0])

    def median(self, measure: str) -> float | None:
        """Over the runs."""
        return self.measures[measure].median

    @property
    def seeds(self) -> int:
        """Number of seeds: what another round of the same seed says of quality is nothing new."""
        return len({run.document.seed for run in self.runs})

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len({run.document.round for run in self.runs})

    @property
    def measured(self) -> bool:
        """True if any of its runs measured a quality: where none did, a missing one is no divergence."""
        return not self.reference and any(result_of(run).measured for run in self.runs)

    @property
    def reference(self) -> bool:
        """True if it exchanges nothing: the limit for speed, but no way to train."""
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


def pareto(points: Sequence[tuple[Spread, Spread]], *, higher: bool = True) -> list[int]:
    """Indices of the points ``(cost, value)`` that no other clearly beats; a low cost is good.

    A point is beaten by one that is ahead of it in one of the two and not behind it in the other. Ahead means that the
    ranges do not touch; where they touch, neither is ahead. Some point always remains.

    >>> one, two, three = (Spread(x, x - 0.1, x + 0.1) for x in (1, 2, 3))
    >>> pareto([(one, one), (two, three), (three, two), (two, Spread(3.1, 2.9, 3.2))])
    [0, 1, 3]
    """

    def beats(a: tuple[Spread, Spread], b: tuple[Spread, Spread]) -> bool:
        won = a[0].ahead(b[0], higher=False), a[1].ahead(b[1], higher=higher)
        lost = b[0].ahead(a[0], higher=False) or b[1].ahead(a[1], higher=higher)
        return any(won) and not lost

    return [k for k, point in enumerate(points) if not any(beats(other, point) for other in points)]


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
    by_step = [{float(point.step): point for point in result.curve} for result in results]
    steps = sorted(set.intersection(*(set(points) for points in by_step)))
    rows = [[points[step] for points in by_step] for step in steps]
    quality = [spread((point.metrics.get(metric) for point in row), higher=higher, strict=True) for row in rows]
    kept = thin([point.median for point in quality], limit)
    return Curve(
        [steps[i] for i in kept],
        [statistics.median(point.epoch for point in rows[i]) for i in kept],
        [statistics.median(point.seconds for point in rows[i]) for i in kept],
        [quality[i] for i in kept],
        len(steps),
    )


def group_runs(runs: Sequence[Run]) -> tuple[list[Experiment], list[tuple[str, str]]]:
    """Groups of the runs that succeeded, and the files left out: of two runs that differ in nothing, the older."""
    there = [run for run in runs if isinstance(run.document, Result)]
    latest = {(*_key(run), *_repeat(run)): run for run in sorted(there, key=lambda run: run.document.created)}
    kept = {run.file for run in latest.values()}
    newer = "a newer run of the same configuration and seed is there"
    older = [(run.file, newer) for run in there if run.file not in kept]
    experiments: dict[tuple[object, ...], list[Run]] = {}
    for run in latest.values():
        experiments.setdefault(_key(run), []).append(run)
    limits = {
        (place(run), run.document.round): result_of(run).time.step_ms.median
        for run in latest.values()
        if run.document.method == NO_COMMUNICATION
    }
    labels = _label([repeats[0] for repeats in experiments.values()])
    groups = [
        _group(sorted(repeats, key=_repeat), label, limits)
        for repeats, label in zip(experiments.values(), labels, strict=True)
    ]
    return _mark(groups), older


def _key(run: Run) -> tuple[object, ...]:
    return tuple(run.row[name] for name in (*_PLACE, "method", "kind", *_SETTINGS))


def _repeat(run: Run) -> tuple[int, int]:
    return run.document.seed, run.document.round


def place(run: Run) -> tuple[object, ...]:
    """Place where methods compete: one task on one network with so many workers."""
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
        parts = [_SETTINGS[name].format(value) for name in differ if (value := run.row[name]) is not None]
        labels.append(run.document.method + (f" ({', '.join(parts)})" if parts else ""))
    return labels


def _group(runs: list[Run], label: str, limits: Mapping[tuple[tuple[object, ...], int], float]) -> Experiment:
    """``limits``: the step without communication of each place and round."""
    higher = result_of(runs[0]).better == "higher"
    measures = {}
    for name, column in MEASURES.items():
        up = higher if name in ("final", "best") else name != "target_seconds"
        measures[name] = spread((run.row[column] for run in runs), higher=up, strict=name in _STRICT)
    if len(runs) == 1:  # whose steps have quartiles, the only range that it has
        measures |= _of_steps(result_of(runs[0]).time)
    measures[OVER_LIMIT] = spread(
        result_of(run).time.step_ms.median / limit if (limit := limits.get((place(run), run.document.round))) else None
        for run in runs
    )
    reached = len({run.document.seed for run in runs if run.row["target_seconds"] is not None})
    return Experiment(tuple(runs), label, measures, reached, curve_of(runs))


def _of_steps(times: Times) -> dict[str, Spread]:
    """Statistics of one run: the quartiles of its steps, and what they say of its throughput."""
    step, speed = times.step_ms, times.samples_per_second
    out = {"step_ms": Spread(step.median, step.low, step.high)}
    if speed is not None and step.low > 0:
        out["throughput"] = Spread(
            speed, speed * min(1.0, step.median / step.high), speed * max(1.0, step.median / step.low)
        )
    return out


def _mark(groups: list[Experiment]) -> list[Experiment]:
    """Marks the groups on the fronts of their place, quality against throughput and bytes, and those to compare with.

    Nobody knows how far another seed would be from a single run: it is on no front, and keeps nothing off.
    """
    places: dict[tuple[object, ...], list[int]] = {}
    for index, group in enumerate(groups):
        places.setdefault((place(group.runs[0]), group.first.metric), []).append(index)
    marks: dict[str, set[int]] = {"front_throughput": set(), "front_sent": set(), "fp32": set()}
    for members in places.values():
        plain = [i for name in _FP32 for i in members if groups[i].first.method == name]
        marks["fp32"].update(plain[:1])
        for measure in ("throughput", "sent"):
            ends = [
                i
                for i in members
                if not groups[i].reference
                and groups[i].seeds > 1
                and None not in (groups[i].median("final"), groups[i].median(measure))
            ]
            points = [(_cost(groups[i].measures[measure], measure), groups[i].measures["final"]) for i in ends]
            higher = groups[members[0]].first.better == "higher"
            marks[f"front_{measure}"] |= {ends[k] for k in pareto(points, higher=higher)}
    throughput, sent, fp32 = marks["front_throughput"], marks["front_sent"], marks["fp32"]
    return [
        dataclasses.replace(group, front_throughput=i in throughput, front_sent=i in sent, fp32=i in fp32)
        for i, group in enumerate(groups)
    ]


def _cost(values: Spread, measure: str) -> Spread:
    """The measure as a cost: less is better."""
    if measure == "sent":
        return values
    return Spread(*(None if value is None else -value for value in (values.median, values.high, values.low)))
