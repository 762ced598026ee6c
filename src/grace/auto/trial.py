"""A trial: two plans are compared in pairs of blocks of steps, until it is known which one is faster.

A sign says too little where steps vary by some percent: a pair lost by a hair weighs as much as one won by a lot. So each pair
is a fair bet. The order of its blocks is drawn by lot; were the plans equally fast, a difference could as well have come with
the other sign, whatever noise, stalls or drift have made it. A stake of one is bet on the challenger, a share of 0.7 of what
is left in each pair, less where the pair differs by less than the median pair so far. What comes of it, the *odds*, is
expected to stay at one if the challenger is not faster, and then exceeds 20 at any time in at most one of 20 trials, however
long they last: so a trial may be interrupted, and go on later with the pairs that it has (a test martingale; Ville 1939,
Shafer and Vovk, "Game-Theoretic Foundations for Probability and Finance", 2019, chapter 2). Odds on the incumbent are kept
likewise.

All numbers are whole, so that all ranks decide alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

PAIRS, TRIALS = 16, 2  # pairs after which a trial stops, and trials of the same plans that count as one
ONE = 10**9  # of odds
WIN = 20 * ONE  # a challenger is faster
YIELD = 4 * ONE  # fp32 or bf16 may well be faster, and that is enough
LOSE = 5 * ONE // 2  # on the incumbent: it is not worth more pairs
STAKE = 7, 10  # of what is left, as a fraction
_FINE = 10**6  # of differences


@dataclass(slots=True)
class Trial:
    """A challenge. incumbent, rival: numbers of plans. why: it came. pairs: nanoseconds of a step, (incumbent's, rival's).
    better, worse: of how many pairs it was. gain, loss: the odds on the rival and on the incumbent, in billionths.
    won: None while it goes on. step: at which it ended. words: how. weights: of a step of the two, in millionths: how many of
    bf16's it takes to come as far.
    """

    incumbent: int
    rival: int
    why: str
    pairs: list[tuple[int, int]] = field(default_factory=list)
    better: int = 0
    worse: int = 0
    gain: int = ONE
    loss: int = ONE
    won: bool | None = None
    step: int = 0
    words: str = ""
    weights: tuple[int, int] = (1, 1)
    _sizes: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Pairs, those that could not be measured included."""
        return self.better + self.worse

    @property
    def speedup(self) -> float | None:
        """Median over the pairs of the incumbent's time by the rival's; None: no pair was measured."""
        gain = gain_over(self.pairs, self.incumbent)
        return None if gain is None else gain.median

    def add(self, kept: int, theirs: int, needed: int) -> None:
        """Takes a pair: nanoseconds of a step of the incumbent and of the rival; 0 is what could not be measured, and lost.

        ``needed``: what the rival may take to be better, in ten thousandths of what the incumbent takes.
        """
        sound = kept > 0 and theirs > 0
        if sound:
            self.pairs.append((kept, theirs))
        theirs = self.worth(theirs)
        if sound and 10_000 * theirs < needed * kept:
            self.better += 1
        else:
            self.worse += 1
        self._bet(self._weigh(kept, theirs) if sound else -_FINE)

    def worth(self, theirs: int) -> int:
        """Nanoseconds of the rival's step, as many as the incumbent may take for one that is worth as much."""
        return theirs * self.weights[1] // self.weights[0]

    def _weigh(self, kept: int, theirs: int) -> int:
        """By how much the rival was faster, as a share of the median difference so far, in millionths, -1 to 1 of them."""
        size = abs(kept - theirs) * _FINE * _FINE // (kept + theirs)  # odd in the logarithm of their ratio
        self._sizes.append(size)
        usual = sorted(self._sizes)[(len(self._sizes) - 1) // 2]
        share = min(_FINE, size * _FINE // usual) if usual else _FINE
        return share if theirs < kept else -share if theirs > kept else 0

    def _bet(self, share: int) -> None:
        part = STAKE[0] * share // STAKE[1]
        self.gain = self.gain * (_FINE + part) // _FINE
        self.loss = self.loss * (_FINE - part) // _FINE

    def verdict(self, *, plain: bool) -> bool | None:
        """True if the rival has won; None: more pairs are needed, or would be.

        ``plain``: fp32 or bf16 challenges something else: then the burden is the incumbent's, and what is not faster gives
        way.
        """
        if self.loss >= LOSE:
            return False
        if plain:
            return True if self.gain >= YIELD else self.better > self.worse if self.count >= PAIRS else None
        if self.gain >= WIN and self.better > self.worse:
            return True
        over = self.count >= PAIRS * (TRIALS if self.better > self.worse else 1)
        return False if over else None

    @property
    def rests(self) -> bool:
        """True if it has had its share of pairs, and others come first."""
        return self.count > 0 and self.count % PAIRS == 0

    @property
    def undecided(self) -> bool:
        """True if all its pairs say neither that the rival is faster nor that it is not."""
        return self.rests and self.gain < WIN and self.loss < LOSE

    def again(self) -> Trial:
        """The same trial, to go on with the pairs that it has."""
        return replace(self, pairs=list(self.pairs), _sizes=list(self._sizes), won=None, step=0, words="")

    @property
    def tally(self) -> str:
        """The pairs in words."""
        return f"{self.better} of {self.count} pairs for it"

    @property
    def outcome(self) -> str:
        """The result of the pairs so far, in words."""
        if self.undecided:
            return f"{self.tally}, which decides nothing"
        return (
            self.tally
            if self.gain > self.loss and self.better > self.worse
            else f"{self.worse} of {self.count} pairs against it"
        )


class Compared(Protocol):
    """A trial that was held: plans by number, and the times of a step in pairs, (incumbent's, rival's), in one unit."""

    @property
    def incumbent(self) -> int: ...
    @property
    def rival(self) -> int: ...
    @property
    def pairs(self) -> Sequence[tuple[float, float]]: ...


@dataclass(frozen=True)
class Gain:
    """Steps of one plan beside those of a baseline, in pairs of blocks that followed one another.

    Attributes:
        over: number of the baseline. pairs: how many were measured.
        median, low, high: baseline's time of a step by the plan's, over the pairs; above 1 the plan is faster.
    """

    over: int
    pairs: int
    median: float
    low: float
    high: float


def gain_over(pairs: Sequence[tuple[float, float]], over: int) -> Gain | None:
    """Compare a plan with the baseline ``over`` by pairs (baseline's time, plan's time); None: there are none."""
    ratios = sorted(base / max(1e-12, rival) for base, rival in pairs)
    if not ratios:
        return None
    return Gain(over, len(ratios), ratios[(len(ratios) - 1) // 2], ratios[0], ratios[-1])


def measured_gain(trials: Sequence[Compared], current: int, baselines: Sequence[int]) -> Gain | None:
    """Compare the current plan with the baseline that was measured to be better, by the pairs of trials alone.

    Steps of different times are never compared: a plan that ran in no pair with a baseline is not measured. Of trials of the
    same two plans the last counts; it has the pairs of those that it goes on with.
    """
    latest: dict[int, Gain | None] = {}
    for trial in trials:
        if current not in (trial.incumbent, trial.rival):
            continue
        other = trial.rival if trial.incumbent == current else trial.incumbent
        if other in baselines and trial.pairs:
            turned = [(theirs, rival) for rival, theirs in trial.pairs]
            latest[other] = gain_over(trial.pairs if other == trial.incumbent else turned, other)
    return min((gain for gain in latest.values() if gain is not None), key=lambda gain: gain.median, default=None)
