"""Evidence of the survey's runs about a method's quality, by one rule for the page of its findings and for ``grace advise``.

``evidence.json`` beside this file is made of the archive of this repository, so that an installed package knows it without
the archive: ``python -m docs.survey.findings`` writes it.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Literal, TypeAlias

import msgspec
import numpy as np

import grace
from grace.auto.classes import SAFE
from grace.errors import GraceError
from grace_bench.survey.row import TRIAL, SurveyRow

SEEDS = 3  # fewer give no interval
TASKS = 2  # fewer say nothing about methods in general
LOSS = SAFE  # of uncompressed training's quality: what is less does not count as learning less
LONG = 5000  # steps: where there are so long runs on two tasks or more, shorter ones do not count
FILE = "evidence.json"
Verdict: TypeAlias = Literal["keeps", "less", "unsure"]
Task: TypeAlias = tuple[str, str, int]  # protocol, task, steps


class Quality(msgspec.Struct, frozen=True):
    """The final quality of a method's seeds on a task.

    Attributes:
        seeds: how many. median: of the metric; a run that diverged counts as the worst there can be, an infinity.
        low, high: a 95 % bootstrap interval of the median over seeds; None: too few seeds.
        sent: bytes of one worker, as a share of those of a ring all-reduce in fp32; NaN: no run ended.
        higher: whether more is better.
    """

    seeds: int
    median: float
    low: float | None
    high: float | None
    sent: float
    higher: bool

    def beats(self, other: Quality) -> bool:
        """True if it is better, and the intervals do not touch."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return False
        return self.low > other.high if self.higher else self.high < other.low

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.median:.4g} ({self.seeds} seed{'s' if self.seeds > 1 else ''})"
        return f"{self.median:.4g} ({min(self.low, self.high):.4g} to {max(self.low, self.high):.4g})"


Table: TypeAlias = dict[Task, dict[str, Quality]]


class Evidence(msgspec.Struct, frozen=True):
    """The evidence about a method's quality.

    Attributes:
        verdict: "less": on some task it ended worse than uncompressed training, by more than 2 % in the median of three seeds
            or more each, and the intervals do not touch; "keeps": on two tasks or more with so many seeds, and never that;
            "unsure": anything else. Of several lengths of training of a task, the longest with so many seeds counts; and where
            there are runs of 5,000 steps or more on two tasks, with so many seeds, shorter ones do not.
        task, protocol, steps, metric: where it did worst beside uncompressed training, of the tasks with most seeds.
        value, fp32: the medians there, its own and uncompressed training's, or bf16's where that was not run as often; null:
            it diverged. seeds: of it there.
        tasks, runs: on which it was run, and how many runs that were, there and elsewhere.
    """

    verdict: Verdict
    task: str
    protocol: str
    steps: int
    metric: str
    value: float | None
    fp32: float
    seeds: int
    tasks: int
    runs: int


class TaskQualities(msgspec.Struct, frozen=True):
    """A task in the file. methods: by their recipe, with all knobs."""

    protocol: str
    task: str
    steps: int
    metric: str
    methods: dict[str, Quality]

    @property
    def key(self) -> Task:
        """See above."""
        return self.protocol, self.task, self.steps


def judge(name: str, table: Table, metrics: dict[Task, str], limit: float = LOSS) -> Evidence | None:
    """The evidence of a table about one of its methods; None: none, or there is no uncompressed training to compare it
    with. ``limit``: which share of uncompressed training's quality may be lost before a method counts as learning less.
    """
    pairs = pairs_of(name, table)
    if not pairs:
        return None
    judged = judged_of(pairs)
    less = [task for task in judged if pairs[task][1].beats(pairs[task][0]) and loss_of(*pairs[task]) > limit]
    verdict: Verdict = "less" if less else "keeps" if len(judged) >= TASKS else "unsure"
    worst = max(less or judged or pairs, key=lambda task: loss_of(*pairs[task]))
    quality, fp32 = pairs[worst]
    protocol, task, steps = worst
    return Evidence(
        verdict, task, protocol, steps, metrics[worst], quality.median if math.isfinite(quality.median) else None, fp32.median,
        quality.seeds, len({task[1] for task in pairs}), sum(quality.seeds for quality, _ in pairs.values()),
    )  # fmt: skip


def pairs_of(name: str, table: Table) -> dict[Task, tuple[Quality, Quality]]:
    """Qualities of a method and of uncompressed training, by task; of bf16 where that alone has an interval."""
    pairs = {}
    for task, of in table.items():
        plain = [of[other] for other in ("none", "bf16") if other in of and not other == name == "bf16"]
        if name in of and plain:
            pairs[task] = of[name], next((quality for quality in plain if quality.low is not None), plain[0])
    return pairs


def judged_of(pairs: Mapping[Task, tuple[Quality, Quality]]) -> list[Task]:
    """The tasks that count: those where both have an interval, of several lengths the longest; of these the long ones only,
    where they are enough.
    """
    judged = _longest([task for task, pair in pairs.items() if all(quality.low is not None for quality in pair)])
    long = [task for task in judged if task[2] >= LONG]
    return long if len(long) >= TASKS else judged


def limit_of(name: str, table: Table) -> float | None:
    """The least share of uncompressed training's quality such that a method is not judged to learn less; None: a run of it
    diverged, or it was run on too few tasks.
    """
    pairs = pairs_of(name, table)
    judged = judged_of(pairs)
    ends = [end for task in judged for end in (pairs[task][0].low, pairs[task][0].high) if end is not None]
    if not all(map(math.isfinite, ends)):  # however well other seeds have ended
        return None
    less = [loss_of(*pairs[task]) for task in judged if pairs[task][1].beats(pairs[task][0])]
    return max([0.0, *less]) if len(judged) >= TASKS else None


def evidence_for(method: str) -> Evidence | None:
    """The survey's evidence about exactly this method, over this communicator and with these knobs; None: none."""
    try:
        return judge(grace.spell(grace.method(method)), *read_evidence())
    except GraceError:
        return None


@functools.cache
def read_evidence() -> tuple[Table, dict[Task, str]]:
    """The qualities in this package, and the metric of each task."""
    text = (files(__package__) / FILE).read_text(encoding="utf-8")
    places = msgspec.convert(json.loads(text), list[TaskQualities])  # with infinities, which only json reads
    return {place.key: place.methods for place in places}, {place.key: place.metric for place in places}


def sort_rows(rows: Iterable[SurveyRow]) -> dict[Task, dict[str, list[SurveyRow]]]:
    """The runs on embedded data on the processor, by task and method. Trials of a learning rate measure no method."""
    tasks: dict[Task, dict[str, list[SurveyRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.source == "embedded" and row.device == "cpu" and not row.protocol.endswith(TRIAL):
            tasks[row.protocol, row.task, row.steps][row.method].append(row)
    return {task: dict(sorted(of.items())) for task, of in sorted(tasks.items())}


def loss_of(quality: Quality, fp32: Quality) -> float:
    """Loss of quality in the median, as a share of uncompressed training's; infinite where it diverged."""
    if not math.isfinite(quality.median):
        return math.inf
    return (fp32.median - quality.median if quality.higher else quality.median - fp32.median) / abs(fp32.median)


def _longest(tasks: Iterable[Task]) -> list[Task]:
    """Protocol of each task with most steps."""
    return list({task[1]: task for task in sorted(tasks, key=lambda task: task[2])}.values())


def quality_of(values: Sequence[float | None], *, higher: bool, sent: Sequence[float] = ()) -> Quality:
    """The median of several seeds, and its interval. None: the worst there is. ``sent``: shares of fp32's bytes."""
    worst = -np.inf if higher else np.inf
    given = [worst if value is None else value for value in values]
    median, low, high = statistics.median(given), None, None
    if len(given) >= SEEDS:
        low, high = min(given), max(given)
        if np.isfinite(given).all() and low < high:
            low, high = _interval(tuple(given))
    return Quality(len(given), median, low, high, statistics.median(sent) if sent else float("nan"), higher)


@functools.cache
def _interval(values: tuple[float, ...]) -> tuple[float, float]:
    """A 95 % bootstrap interval of the median."""
    from scipy.stats import bootstrap  # slow to import, and only who reads an archive needs it

    drawn = bootstrap((values,), np.median, method="percentile", rng=np.random.default_rng(0))
    low, high = map(float, drawn.confidence_interval)
    return low, high
