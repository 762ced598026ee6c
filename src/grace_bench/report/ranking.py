"""Ranking, where one can be made: methods whose ranges touch are not told apart, here or on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grace_bench.report.groups import Experiment, Spread, group_runs, place
from grace_bench.report.read import Run
from grace_bench.runs.results import Document, Failure

MARK = "*"  # after a number that is clearly the best
_QUALITIES = ("final", "best")  # from a single seed these have no range, and say nothing about another


def experiments(documents: Sequence[Document]) -> tuple[list[Experiment], list[Failure]]:
    """The runs that succeeded, repeats in one group each, in the order of the documents; and those that failed."""
    runs = [Run(str(at), document) for at, document in enumerate(documents)]
    order = {run.file: at for at, run in enumerate(runs)}
    groups, _ = group_runs(runs)
    groups.sort(key=lambda group: min(order[run.file] for run in group.runs))
    return groups, [document for document in documents if isinstance(document, Failure)]


def leaders(ranges: Sequence[Spread], *, higher: bool) -> list[int]:
    """The best by its median, and all that it is not clearly ahead of; if it is alone, it is a clear winner.

    >>> leaders([Spread(3, 2, 4), Spread(1, 0.5, 1.5), Spread(2, 1.4, 2.5)], higher=False)
    [1, 2]
    >>> leaders([Spread(3, 2, 4), Spread(1, 0.5, 1.3), Spread(2, 1.4, 2.5)], higher=False)
    [1]
    """
    medians = {at: values.median for at, values in enumerate(ranges) if values.median is not None}
    if not medians:
        return []
    best = (max if higher else min)(medians, key=lambda at: medians[at])
    near = [at for at, values in enumerate(ranges) if at != best and not ranges[best].ahead(values, higher=higher)]
    return [best, *near]


def crowns(groups: Iterable[Experiment], measure: str) -> set[int]:
    """Runs (by ``id``) that are clearly the best of two or more where they compete: with the best quality, ``final``, which
    takes several seeds, or with the least of another measure.
    """
    places: dict[tuple[object, ...], list[Experiment]] = {}
    for group in groups:
        if not group.reference:
            places.setdefault(place(group.runs[0]), []).append(group)
    crowned = set()
    for rivals in places.values():
        higher = measure in _QUALITIES and rivals[0].first.better == "higher"
        first = leaders([rival.measures[measure] for rival in rivals], higher=higher)
        alone = len(first) == 1 and len(rivals) > 1
        if alone and not (measure in _QUALITIES and any(rival.seeds == 1 for rival in rivals)):
            crowned.add(id(rivals[first[0]]))
    return crowned
