"""The part of a plan that an archive has, and how long the remaining runs will take."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from grace_bench.survey.plan import Planned
from grace_bench.survey.row import TRIAL, SurveyRow, name_of


class PlanPart(Struct, frozen=True):
    """The runs of a plan by one protocol on one task.

    Attributes:
        runs: how many. there: of them, in the archive.
        hours: of one core that the others will take, as like runs of the archive did; None: it has none that are like them.
    """

    protocol: str
    task: str
    runs: int
    there: int
    hours: float | None


def split(plan: Sequence[Planned], rows: Iterable[SurveyRow]) -> list[PlanPart]:
    """A part for each protocol and task, in the order of the plan."""
    rows = list(rows)
    have, spent = Have(rows), _Spent(rows)
    places: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    there: dict[tuple[str, str], int] = defaultdict(int)
    for run in plan:
        place, method = (run.protocol, run.config.task), name_of(run.config.method)[0]
        if have.row(run) is not None:
            there[place] += 1
            places[place].append(0.0)
        else:
            places[place].append(spent.seconds(run, method))
    return [
        PlanPart(*place, len(of), there[place], None if None in of else round(sum(filter(None, of)) / 3600, 2))
        for place, of in places.items()
    ]


class Have:
    """The runs of an archive, by what a plan says of them."""

    def __init__(self, rows: Iterable[SurveyRow] = ()):
        self._of: dict[tuple[str, str, str, int, int], list[SurveyRow]] = defaultdict(list)
        for row in rows:
            self._of[row.protocol, row.task, row.method, row.seed, row.workers].append(row)

    def row(self, run: Planned) -> SurveyRow | None:
        """The one that is this run, on embedded data on the processor; None: there is none. What the plan leaves open, its
        length or its learning rate, may be any.
        """
        config = run.config
        if not self._of or config.data is not None:
            return None
        method = name_of(config.method)[0]
        for row in self._of.get((run.protocol, config.task, method, config.seed, config.workers), ()):
            same_lr = config.lr is None or f"{row.peak_lr:.6g}" == f"{config.lr:.6g}"
            same_length = config.steps in (None, row.steps) and config.batch in (None, row.batch)
            if same_lr and same_length and (row.source, row.device) == ("embedded", "cpu"):
                return row
        return None


class _Spent:
    """Processor seconds of the runs of an archive."""

    def __init__(self, rows: Iterable[SurveyRow]):
        self._of: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for row in rows:
            protocol = row.protocol.removesuffix(TRIAL)
            self._of[protocol, row.task, row.method].append(row.cpu_seconds)
            self._of[protocol, row.task].append(row.cpu_seconds)
            self._of["a step", row.task, row.method].append(row.cpu_seconds / row.steps)
            self._of["a step", row.task].append(row.cpu_seconds / row.steps)

    def seconds(self, run: Planned, method: str) -> float | None:
        """Seconds of the same method by the same protocol, of another method, or of another protocol by its steps."""
        protocol, task, steps = run.protocol.removesuffix(TRIAL), run.config.task, run.config.steps
        like: list[tuple[str, ...]] = [(protocol, task, method), (protocol, task)]
        like += [] if steps is None else [("a step", task, method), ("a step", task)]
        key = next((key for key in like if key in self._of), None)
        return (
            None if key is None else (steps if key[0] == "a step" and steps else 1) * statistics.median(self._of[key])
        )
