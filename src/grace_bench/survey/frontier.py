"""The frontier: the quality, the steps and the bytes that a method costs beside bf16, from the runs of an archive.

Steps are counted by time to target: the first evaluation that reached bf16's quality, beside bf16's own. A run of the same
length that ends short of it never reached it, and says so. Where the archive has bf16 trained for other lengths, each with a
whole schedule of the learning rate, these tell after how many steps bf16 ends where that run ended: the multiple is *matched*.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from grace_bench.survey.evidence import SEEDS, Quality, Task, loss_of, quality_of, sort_rows
from grace_bench.survey.goals import GOAL, goal_of, steps_to
from grace_bench.survey.row import SurveyRow
from grace_command.text import amount, plain_table, share

if TYPE_CHECKING:
    from rich.console import RenderableType

SCREEN = "screen"  # the protocol of short runs that only drop what is hopeless
# Of bf16's quality, and times the bytes: what a screen takes for a wide margin. After 1,000 steps of gpt_tiny top-k at 1 % is
# 41 % behind bf16, and after 5,000 steps 11 %; PowerSGD comes from 5 to 3 %. So whoever is less than 20 % apart may yet change
# places.
WORSE, MORE = 0.2, 1.5
How: TypeAlias = Literal["reached", "matched", "not reached"]
Ladder: TypeAlias = list[tuple[int, float]]  # steps of bf16, and the quality with which these end


class Multiple(Struct, frozen=True):
    """Steps to bf16's quality, as a multiple of bf16's own.

    Attributes:
        how: "reached": by evaluations along the runs; "matched": by bf16 of other lengths; "not reached": nobody knows. A run
            that diverged has not reached it, wherever it came before.
        median: of all pairs of runs of the two; infinite where not reached.
        low, high: the range of these, with the distance between evaluations; None: fewer than three seeds of either.
        least: a lower bound that holds in any case. seeds, reached: runs, and how many of them reached it.
    """

    how: How
    median: float
    low: float | None
    high: float | None
    least: float
    seeds: int
    reached: int

    def __str__(self) -> str:
        if self.how == "not reached":
            text = f"not reached, over {self.least:.3g}"
        else:
            ends = "" if self.low is None or self.high is None else f" ({self.low:.3g} to {self.high:.3g})"
            text = f"{self.median:.3g}{ends}" + (", matched" if self.how == "matched" else "")
        return text if self.seeds >= SEEDS else f"{text} ({self.seeds} seed{'s' if self.seeds > 1 else ''})"


class Place(Struct, frozen=True):
    """A method on a task.

    Attributes:
        quality: after the whole run. loss: beside bf16's median, as a share of it; infinite: it diverged.
        steps: to bf16's quality. sent: bytes of one worker and step. share: of bf16's bytes.
        on_frontier: whether whoever sends no more ends worse.
    """

    quality: Quality
    loss: float
    steps: Multiple
    sent: float
    share: float
    on_frontier: bool


class Beaten(Struct, frozen=True):
    """A method that needs no longer runs. rival: who beats it on both axes; "": it diverged. worse, more: by how much."""

    method: str
    rival: str
    worse: float
    more: float

    def __str__(self) -> str:
        if not self.rival:
            return f"{self.method}: diverged"
        worse = f"ends {100 * self.worse:.3g} % worse" if math.isfinite(self.worse) else "diverged"
        return f"{self.method}: {worse} than {self.rival}, and sends {self.more:.3g} times the bytes"


Frontier: TypeAlias = dict[Task, dict[str, Place]]


def find_frontier(rows: Iterable[SurveyRow]) -> Frontier:
    """Methods by their place on each task of which bf16 has runs, in the order of what they send."""
    tasks = sort_rows(rows)
    return {
        task: _places(of, ladders_of(task, tasks))
        for task, of in tasks.items()
        if goal_of(of) is not None and _sent(of[GOAL]) > 0  # one worker alone sends nothing
    }


def find_hopeless(places: Mapping[str, Place], worse: float = WORSE, more: float = MORE) -> list[Beaten]:
    """Methods that another one beats on both axes by a margin, and those that diverged: successive halving drops them.

    Args:
        places: of the methods on one task.
        worse: by how much more of bf16's quality they lose.
        more: times the bytes of the other that they send, at least.
    """
    beaten = []
    for name, place in places.items():
        if name == GOAL:
            continue
        rivals = [
            other
            for other, better in places.items()
            if better.sent * more <= place.sent and place.loss - better.loss > worse
        ]
        if rivals:
            rival = min(rivals, key=lambda other: (places[other].loss, other))
            beaten.append(Beaten(name, rival, place.loss - places[rival].loss, place.sent / places[rival].sent))
        elif not math.isfinite(place.loss):
            beaten.append(Beaten(name, "", place.loss, math.nan))
    return sorted(beaten, key=lambda of: (-of.worse, of.method))


def ladders_of(task: Task, tasks: Mapping[Task, Mapping[str, Sequence[SurveyRow]]]) -> list[Ladder]:
    """The ends of bf16 on a task after each length that it was trained for, up to this one: a ladder for each seed that has
    run all lengths. None is there where it was trained for one length only.
    """
    _, name, longest = task
    like = tasks[task][GOAL][0]
    finals: dict[int, dict[int, float]] = {}
    for row in (row for (_, other, _), of in tasks.items() if other == name for row in of.get(GOAL, ())):
        alike = (row.workers, row.batch, row.peak_lr) == (like.workers, like.batch, like.peak_lr)
        if alike and row.steps <= longest and row.final is not None:
            finals.setdefault(row.steps, {})[row.seed] = row.final
    if len(finals) < 2:
        return []
    seeds = set.intersection(*(set(of) for of in finals.values()))
    return [[(steps, finals[steps][seed]) for steps in sorted(finals)] for seed in sorted(seeds)]


def climb(ladder: Ladder, quality: float, *, higher: bool) -> float | None:
    """Steps after which bf16 would have ended with this quality, on a line in the logarithm of steps between two rungs; None:
    it is below or above them all.
    """
    sign = 1 if higher else -1
    for (before, start), (after, end) in pairwise(ladder):
        low, high, wanted = sign * start, sign * end, sign * quality
        if low <= wanted <= high and low < high:
            share = (wanted - low) / (high - low)
            return math.exp(math.log(before) + share * math.log(after / before))
    return None


def multiple_of(
    runs: Sequence[SurveyRow], plain: Sequence[SurveyRow], goal: float, ladders: Sequence[Ladder] = ()
) -> Multiple:
    """Steps of these runs to a goal, beside those of bf16's runs. ``ladders``: see :func:`ladders_of`."""
    higher = runs[0].better == "higher"
    pairs: list[tuple[float, float, float]] = []
    reached = 0
    for row in runs:
        if row.final is not None and math.isfinite(steps_to(row, goal)):  # else it came there, and diverged
            reached += 1
            pairs += [_pair(row, other, goal) for other in plain]
            continue
        climbed = [None if row.final is None else climb(ladder, row.final, higher=higher) for ladder in ladders]
        ratios = [math.inf if steps is None else row.steps / steps for steps in climbed] or [math.inf]
        pairs += [(ratio, ratio, ratio) for ratio in ratios]
    if not all(math.isfinite(middle) for _, middle, _ in pairs):
        least = max(row.steps for row in runs) / max(_bracket(row, goal)[1] for row in plain)
        return Multiple("not reached", math.inf, None, None, least, len(runs), reached)
    low, middle, high = min(p[0] for p in pairs), statistics.median(p[1] for p in pairs), max(p[2] for p in pairs)
    matched = reached < len(runs)
    enough = min(len(runs), len(plain), len(ladders) if matched else SEEDS) >= SEEDS
    how: How = "matched" if matched else "reached"
    return Multiple(how, middle, low if enough else None, high if enough else None, low, len(runs), reached)


def _pair(row: SurveyRow, other: SurveyRow, goal: float) -> tuple[float, float, float]:
    """A run's steps by another's: at least, as evaluated, at most. A run reached the goal at an evaluation or since the one
    before.
    """
    (before, at), (other_before, other_at) = _bracket(row, goal), _bracket(other, goal)
    return before / other_at, at / other_at, at / other_before if other_before else math.inf


def _bracket(row: SurveyRow, goal: float) -> tuple[float, float]:
    """Evaluations between which a run reached the goal; of one that never did, its last."""
    at = steps_to(row, goal)
    if not math.isfinite(at):
        return float(row.steps), float(row.steps)
    return float(max((before for before in row.at if before < at), default=0)), max(1.0, at)


def table_of(task: Task, places: Mapping[str, Place]) -> RenderableType:
    """A table for people: what sends least comes first, and a star is on the frontier."""
    protocol, name, steps = task
    headings = ("", "method", "quality", "beside bf16", "steps to bf16's", "sent / step", "of bf16's")
    table = plain_table(f"{name}, {steps} steps, protocol {protocol}", headings, left=2)
    for method, place in places.items():
        loss = f"{-100 * place.loss:+.2f} %" if math.isfinite(place.loss) else "diverged"
        table.add_row(
            "*" if place.on_frontier else "", method, str(place.quality), loss, str(place.steps), amount(place.sent),
            share(place.share),
        )  # fmt: skip
    return table


def _places(of: Mapping[str, Sequence[SurveyRow]], ladders: Sequence[Ladder]) -> dict[str, Place]:
    plain = of[GOAL]
    goal = goal_of(of)
    assert goal is not None
    higher = plain[0].better == "higher"
    sent = {name: _sent(runs) for name, runs in of.items()}
    qualities = {name: quality_of([row.final for row in runs], higher=higher) for name, runs in of.items()}
    losses = {name: loss_of(quality, qualities[GOAL]) for name, quality in qualities.items()}
    places: dict[str, Place] = {}
    best = math.inf
    for name in sorted(
        of, key=lambda name: (sent[name], losses[name], name)
    ):  # of equal bytes the best may have the star
        runs, loss = of[name], losses[name]
        steps = (
            Multiple("reached", 1.0, 1.0, 1.0, 1.0, len(runs), len(runs))
            if name == GOAL
            else multiple_of(runs, plain, goal, ladders)
        )
        places[name] = Place(qualities[name], loss, steps, sent[name], sent[name] / sent[GOAL], loss < best)
        best = min(best, loss)
    return places


def _sent(runs: Sequence[SurveyRow]) -> float:
    """Bytes of one worker and step, in the median over runs."""
    return statistics.median(row.sent[-1] / max(1, row.at[-1]) for row in runs)
