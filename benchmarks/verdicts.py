"""The findings of the survey (Xu et al., ICDCS 2021), judged by the archive: confirmed, refuted, or not decidable here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

import grace
from benchmarks.comparison import Compared, Comparison
from grace_bench.survey.evidence import LOSS, SEEDS, TASKS, Quality, Task

CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "not decidable here"
RANKING = ("randomk:scale=false", "threshold", "dgc", "topk", "powersgd")
TOGETHER = 0.5  # a rank correlation above it: ratio and speed-up go together
FEW, MOST = 0.25, 0.5  # shares of the methods: fewer are few, more are most
MARGIN = 0.02  # a method must be faster by this much to pay, as in grace advise
CLOSE = 0.1  # a prediction errs by this much in the median
SWAP_ODDS = 400  # to one: that three seeds beat three others in one task, and lose in another, by chance
_DENSE = 0.45  # of fp32's bytes: what sends as much compresses no more than bf16
_NEEDS = "there is no table of steps that an idle machine measured: `grace survey steps` makes it"


class Verdict(Struct, frozen=True):
    """The archive's verdict on a finding, and the reason."""

    finding: str
    verdict: str
    why: str


def judge(comparison: Comparison, *, timed: bool = True) -> list[Verdict]:
    """All verdicts.

    Args:
        comparison: the methods on each task.
        timed: whether an idle machine measured the steps; if not, no finding of times is decided.
    """
    times = _times(comparison) if timed else {}
    return [*(rule(comparison) for rule in _QUALITIES), *(rule(times) for rule in _TIMES)]


# ---- qualities ------------------------------------------------------------------------------------------------------
def _pair(finding: str, better: str, worse: str, other: str = "") -> Callable[[Comparison], Verdict]:
    """The finding that one method is better than another on every task. ``other``: why what is here is another method than the
    survey's, which nothing here can judge.
    """

    def rule(comparison: Comparison) -> Verdict:
        first, second = (grace.spell(grace.method(name)) for name in (better, worse))
        there = {
            task: (of[first].epochs, of[second].epochs)
            for task, of in comparison.items()
            if first in of and second in of
        }
        judged = longest([task for task, pair in there.items() if None not in (pair[0].low, pair[1].low)])
        held = [task for task in judged if _clearly(*there[task])]
        against = [task for task in judged if _clearly(*reversed(there[task]))]
        places = "; ".join(
            f"{name_of(task)}: `{first}` {there[task][0]}, `{second}` {there[task][1]}" for task in judged or there
        )
        counts = f"clearly so on {len(held)}, clearly the opposite on {len(against)} of {_count(len(judged), 'task')}. "
        counts += places
        if not there:
            return Verdict(finding, OPEN, f"{other + ': ' if other else ''}nothing that could be compared is measured")
        if other:
            return Verdict(finding, OPEN, f"{other}: what is here is another method. {_upper(counts)}")
        if against:
            return Verdict(finding, REFUTED, f"as a rule: {counts}")
        if len({task[1] for task in judged}) < TASKS:
            return Verdict(finding, OPEN, f"{_few(judged)}. {places}")
        if len(held) == len(judged):
            return Verdict(finding, CONFIRMED, counts)
        return Verdict(finding, OPEN, counts)

    return rule


def _clearly(quality: Quality, other: Quality) -> bool:
    """True if it is better by more than 2 % in the median, and the intervals do not touch: of equal methods with three seeds
    one comes out better in one case of ten, but seldom by much.
    """
    return quality.beats(other) and not abs(quality.median - other.median) <= LOSS * abs(other.median)


def _no_winner(comparison: Comparison) -> Verdict:
    """By two yardsticks: after the whole run, and after equal bytes; among methods that send less than bf16 does."""
    finding = "No method wins everywhere"
    judged = _judged(comparison)
    if len({task[1] for task in judged}) < TASKS:
        return Verdict(finding, OPEN, _few(list(judged)))
    names = set.intersection(
        *({name for name, compared in of.items() if compared.sent < _DENSE} for of in judged.values())
    )
    yards: dict[str, Callable[[Compared], Quality]] = {
        "epochs": lambda compared: compared.epochs,
        "bytes": lambda compared: compared.bytes,
    }
    on = f"{len(names)} methods that send less than bf16, on {_names(list(judged))}"
    unbeaten = {}
    for yard, of_yard in yards.items():
        sheets = [{name: of_yard(of[name]) for name in names} for of in judged.values()]
        for name in sorted(names):
            if all(sheet[name].beats(sheet[rival]) for sheet in sheets for rival in names - {name}):
                return Verdict(finding, REFUTED, f"`{name}` clearly beats all others at equal {yard}, of {on}")
        beaten = {name for sheet in sheets for name in names if any(sheet[rival].beats(sheet[name]) for rival in names)}
        unbeaten[yard] = sorted(names - beaten)
    if not any(unbeaten.values()):
        return Verdict(
            finding, CONFIRMED, f"each is clearly beaten on one of the tasks, at equal epochs and at equal bytes: {on}"
        )
    rest = "; ".join(f"at equal {yard} {_code(left)}" for yard, left in unbeaten.items() if left)
    return Verdict(finding, OPEN, f"of {on}, nothing is clearly better on any task than {rest}")


def _architecture(comparison: Comparison) -> Verdict:
    finding = "The architecture decides which method is better"
    judged = _judged(comparison)
    swaps, tried = [], 0
    for (here, first), (there, second) in itertools.combinations(judged.items(), 2):
        for a, b in itertools.permutations(sorted(set(first) & set(second)), 2):
            tried += 1
            if first[a].epochs.beats(first[b].epochs) and second[b].epochs.beats(second[a].epochs):
                swaps.append(
                    f"`{a}` clearly beats `{b}` on {name_of(here)}, and is clearly beaten by it on {name_of(there)}"
                )
    chance = tried / SWAP_ODDS
    pairs = f"{_count(len(swaps), 'pair')} of methods clearly change places between two tasks"
    if len(swaps) > 2 * chance:
        why = f"{pairs}, where chance alone would make about {chance:.0f}. The first: {swaps[0]}"
        return Verdict(finding, CONFIRMED, why)
    return Verdict(finding, OPEN, f"{pairs}, no more than chance would make; {_few(list(judged))}")


# ---- times ----------------------------------------------------------------------------------------------------------
Steps = Mapping[str, Mapping[str, Compared]]


def _times(comparison: Comparison) -> Steps:
    """The methods of each task whose step is known, whatever they were trained for; fp32 and bf16 among them."""
    known: dict[str, dict[str, Compared]] = {}
    for task in sorted(comparison, key=lambda task: -task[2]):
        for name, compared in comparison[task].items():
            if compared.steps:
                known.setdefault(task[1], {}).setdefault(name, compared)
    return {task: of for task, of in sorted(known.items()) if {"none", "bf16"} <= set(of)}


def _ratio(times: Steps) -> Verdict:
    finding = "Compression ratio and speed-up do not go together"
    if len(times) < TASKS:
        return Verdict(finding, OPEN, _NEEDS)
    correlations, clear = [], {True: 0, False: 0}
    for task, of in times.items():
        names = [name for name in sorted(of) if name not in ("none", "bf16") and np.isfinite(of[name].sent)]
        pairs = np.array([(1 / of[name].sent, 1 / of[name].steps["1 Gbit/s"]) for name in names])
        low, middle, high = _correlation(pairs)
        clear[True] += low > TOGETHER
        clear[False] += high < TOGETHER
        correlations.append(f"{task} {middle:.2f} ({low:.2f} to {high:.2f})")
    why = (
        f"rank correlation over methods at 1 Gbit/s, where above {TOGETHER} they go together: {', '.join(correlations)}"
    )
    if clear[True] == len(times):
        return Verdict(finding, REFUTED, why)
    return Verdict(finding, CONFIRMED if clear[False] >= TASKS and not clear[True] else OPEN, why)


def _correlation(pairs: np.ndarray) -> tuple[float, float, float]:
    """Spearman's, with its 95 % bootstrap interval over methods: low, itself, high."""
    from scipy.stats import rankdata

    def rho(some: np.ndarray) -> float:
        x, y = rankdata(some[:, 0]), rankdata(some[:, 1])
        return 0.0 if not x.std() or not y.std() else float(np.corrcoef(x, y)[0, 1])

    rng = np.random.default_rng(0)
    drawn = [rho(pairs[rng.integers(0, len(pairs), len(pairs))]) for _ in range(500)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), rho(pairs), float(high)


def _few_pay(times: Steps) -> Verdict:
    finding = "At 10 Gbit/s few methods pay"
    if len(times) < TASKS:
        return Verdict(finding, OPEN, _NEEDS)
    texts, shares = [], []
    for task, of in times.items():
        seconds = {name: compared.steps["10 Gbit/s"] for name, compared in of.items()}
        dense = min(seconds["none"], seconds["bf16"])
        others = [name for name in seconds if name not in ("none", "bf16")]
        paying = [name for name in others if seconds[name] < (1 - MARGIN) * dense]
        shares.append(len(paying) / len(others) if others else 0.0)
        low, high = _share_interval(len(paying), len(others))
        texts.append(f"{len(paying)} of {len(others)} on {task} ({low:.2f} to {high:.2f})")
    why = (
        f"a step is shorter than that of the better of fp32 and bf16 by {100 * MARGIN:g} % with {', '.join(texts)}, "
        f"where less than {FEW} are few, and more than {MOST} most"
    )
    if max(shares) < FEW:
        return Verdict(finding, CONFIRMED, why)
    return Verdict(finding, REFUTED if sum(share > MOST for share in shares) >= TASKS else OPEN, why)


def _share_interval(some: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: how surely it would be met with other methods."""
    z = 1.96
    if not of:
        return 0.0, 1.0
    middle = (some + z * z / 2) / (of + z * z)
    half = z * np.sqrt(some * (of - some) / of + z * z / 4) / (of + z * z)
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def _ranking(times: Steps) -> Verdict:
    finding = "At 1 Gbit/s random-k, threshold, DGC, top-k and PowerSGD rank in this order"
    there = {task: of for task, of in times.items() if set(RANKING) <= set(of)}
    if len(there) < TASKS:
        return Verdict(finding, OPEN, _NEEDS)
    orders, turned = [], 0
    for task, of in there.items():
        seconds = {name: of[name].steps["1 Gbit/s"] for name in RANKING}
        order = sorted(seconds, key=lambda name: seconds[name])
        orders.append(f"{task}: " + ", ".join(f"`{name}` {1000 * seconds[name]:.3g} ms" for name in order))
        turned += any(seconds[a] > (1 + CLOSE) * seconds[b] for a, b in itertools.combinations(RANKING, 2))
    much = f"the other way round by more than {100 * CLOSE:g} %"
    why = f"{turned} of {len(there)} tasks have two of them {much}. {'; '.join(orders)}"
    if turned == 0:
        return Verdict(finding, CONFIRMED, why)
    return Verdict(finding, REFUTED if turned >= TASKS else OPEN, why)


_QUALITIES: tuple[Callable[[Comparison], Verdict], ...] = (
    _pair("Error feedback lifts top-k at 1 %", "topk", "topk:memory=none"),
    _pair("Error feedback lifts random-k at 1 %", "randomk", "randomk:scale=false,memory=none"),
    _pair(
        "Error feedback hurts QSGD", "qsgd:bits=4", "qsgd:bits=4,memory=residual",
        other="around a memory Grace scales QSGD down to a contraction (`shrink=true`), which the survey did not",
    ),
    _pair(
        "Error feedback hurts sign methods", "efsignsgd:memory=none", "efsignsgd",
        other="signs without a scale, which the survey had, are refused a memory, whose error would grow without bound",
    ),
    _no_winner,
    _architecture,
)  # fmt: skip
_TIMES: tuple[Callable[[Steps], Verdict], ...] = (_ratio, _few_pay, _ranking)


# ---- words ----------------------------------------------------------------------------------------------------------
def longest(tasks: Iterable[Task]) -> list[Task]:
    """The variant of each task with most steps; of equal ones, that with the tasks' own learning rate."""
    order = sorted(tasks, key=lambda task: (task[2], task[0] in ("survey", "quarter"), task[0]))
    return sorted({task[1]: task for task in order}.values())


def name_of(task: Task) -> str:
    """A task and its length, and its protocol where that is another than the survey's."""
    return f"{task[1]}, {task[2]} steps" + ("" if task[0] in ("survey", "quarter") else f", {task[0]}")


def _judged(comparison: Comparison) -> Comparison:
    """The methods with an interval, of the longest runs of each task in which there are most of them."""
    kept = {
        task: {name: compared for name, compared in of.items() if compared.epochs.low is not None}
        for task, of in comparison.items()
    }
    order = sorted(kept, key=lambda task: (len(kept[task]), task[2]))
    best = {task[1]: task for task in order if len(kept[task]) > 1}
    return {task: kept[task] for task in sorted(best.values())}


def _few(judged: Sequence[Task]) -> str:
    return f"{SEEDS} seeds of both ended on {_count(len({task[1] for task in judged}), 'task')}; it takes {TASKS}"


def _names(tasks: Sequence[Task]) -> str:
    return "; ".join(map(name_of, tasks))


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
