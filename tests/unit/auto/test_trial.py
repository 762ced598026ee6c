"""A trial's arithmetic, and how often it is right where steps vary: noise of real trials, heavy tails, drift, neighbours."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from fractions import Fraction

import pytest

from benchmarks.trials import NEEDED, STEP, Counting, Noise, drift, neighbours, play, stalls
from grace.auto import trial as trial_module
from grace.auto.trial import LOSE, ONE, PAIRS, TRIALS, WIN, YIELD, Trial


def played(ratios: list[float], needed: int = NEEDED, kind: type[Trial] = Trial) -> Trial:
    """A trial of pairs in which the rival takes so many times what the incumbent takes."""
    trial = kind(0, 1, "to see")
    for ratio in ratios:
        trial.add(STEP, round(STEP * ratio), needed)
    return trial


# ---- what it says ---------------------------------------------------------------------------------------------------
def test_odds_by_hand() -> None:
    trial = played([0.9])
    assert (trial.gain, trial.loss) == (17 * ONE // 10, 3 * ONE // 10)
    trial = played([0.9, 1 / 0.9])
    assert (trial.gain, trial.loss) == (51 * ONE // 100, 51 * ONE // 100), "as far the other way"
    trial = played([0.9, 1.0])
    assert (trial.gain, trial.better, trial.worse) == (17 * ONE // 10, 1, 1), "a tie bets nothing"
    # the differences are 2/18, 2/18 and 1/19 of the sums: the last is 9/19 of the median
    trial = played([0.8, 0.8, 0.9])
    expected = Fraction(17, 10) ** 2 * (1 + Fraction(7, 10) * Fraction(9, 19))
    assert trial.gain == pytest.approx(ONE * expected, rel=1e-5)


def test_a_lost_pair_costs_what_it_is_worth() -> None:
    narrow = played([0.9] * 5 + [1.001] * 2)
    wide = played([0.9] * 5 + [1.1] * 2)
    assert narrow.gain > 0.95 * played([0.9] * 5).gain
    assert wide.gain < 0.15 * narrow.gain


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.9] * 5, None),
        ([0.9] * 6, True),
        ([0.9] * 4 + [1.01] + [0.9], None),
        ([0.9] * 4 + [1.01] + [0.9] * 2, True),
        ([1.1], None),
        ([1.1] * 2, False),
        ([0.99] * (PAIRS - 1), None),
        ([0.99] * PAIRS, False),  # faster, and not by the margin
        ([0.9, 1.1, 0.9, 1.1] * 4, False),
        ([0.9, 1.1, 0.9] * 5 + [0.9], None),
        (([0.9, 1.1, 0.9] * 5 + [0.9]) * TRIALS, False),
    ],
)
def test_verdicts_of_challengers(ratios: list[float], verdict: bool | None) -> None:
    assert played(ratios).verdict(plain=False) is verdict


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.995] * 2, None),
        ([0.995] * 3, True),
        ([1.1] * 2, False),
        ([1.0] * PAIRS, False),
        ([0.9, 1.1] * (PAIRS // 2 - 1) + [0.9, 0.95], True),  # one more for it than against it
        ([0.9, 1.1] * (PAIRS // 2), False),
    ],
)
def test_verdicts_of_fp32_and_bf16(ratios: list[float], verdict: bool | None) -> None:
    assert played(ratios, 10_000).verdict(plain=True) is verdict


def test_what_could_not_be_measured_is_lost() -> None:
    trial = Trial(0, 1, "to see")
    trial.add(STEP, 0, NEEDED)
    trial.add(0, STEP, NEEDED)
    assert (trial.pairs, trial.worse, trial.verdict(plain=False)) == ([], 2, False)
    assert trial.speedup is None


def test_it_goes_on_as_if_it_had_not_been_interrupted() -> None:
    draw = random.Random(1)
    ratios = [math.exp(draw.gauss(-0.01, 0.04)) for _ in range(20)]
    earlier = played(ratios[:9])
    later = earlier.again()
    for ratio in ratios[9:]:
        later.add(STEP, round(STEP * ratio), NEEDED)
    assert later == played(ratios)
    assert earlier == played(ratios[:9]), "what was told of it stays"


def test_words() -> None:
    assert played([0.9] * 6).outcome == "6 of 6 pairs for it"
    assert played([1.1] * 2).outcome == "2 of 2 pairs against it"
    assert played([0.9, 1.1] * (PAIRS // 2)).outcome == "8 of 16 pairs for it, which decides nothing"
    assert played([0.99] * PAIRS).outcome == "16 of 16 pairs against it"


# ---- the bound ------------------------------------------------------------------------------------------------------
def signs_of(kind: type[Trial], sizes: list[float]) -> list[list[tuple[int, int]]]:
    """Odds on both after each pair, for each way in which differences of these sizes may have come out."""
    odds_seen = []
    for signs in itertools.product((1, -1), repeat=len(sizes)):
        trial, odds = kind(0, 1, "to see"), []
        for sign, size in zip(signs, sizes, strict=True):
            ours, theirs = (STEP, round(STEP / (1 + size)))[::sign]
            trial.add(ours, theirs, NEEDED)
            odds.append((trial.gain, trial.loss))
        odds_seen.append(odds)
    return odds_seen


def fair(kind: type[Trial]) -> bool:
    """True if equals are expected to keep their stakes, and get odds of 20 in at most one of 20 trials, 4 in one of 4."""
    draw = random.Random(2)
    for _ in range(4):
        ways = signs_of(kind, [draw.paretovariate(1.0) / 50 for _ in range(9)])
        for k in (0, 1):
            if abs(sum(way[-1][k] for way in ways) / len(ways) - ONE) > ONE * 1e-5:
                return False
            for bound in (WIN, YIELD, 2 * ONE):
                if sum(any(odds[k] >= bound for odds in way) for way in ways) / len(ways) > ONE / bound:
                    return False
    return True


class Hopeful(Trial):
    """Weighs what is for the challenger by the median difference, and what is against it by the largest."""

    __slots__ = ()

    def _weigh(self, kept: int, theirs: int) -> int:
        share = super()._weigh(kept, theirs)
        return share if share >= 0 else share * self._sizes[-1] // max(self._sizes)


class Generous(Trial):
    """Pays more for a pair that is won than it takes for one that is lost."""

    __slots__ = ()

    def _bet(self, share: int) -> None:
        self.gain = self.gain * (10**6 + share * 7 // 10) // 10**6 + (share == 10**6) * ONE // 10
        self.loss = self.loss * (10**6 - share * 7 // 10) // 10**6


@pytest.mark.parametrize(("kind", "is_fair"), [(Trial, True), (Hopeful, False), (Generous, False)])
def test_equals_rarely_win(kind: type[Trial], is_fair: bool) -> None:
    assert fair(kind) == is_fair


# ---- how often it is right ------------------------------------------------------------------------------------------
# In thousandths: what pairs of real trials of VGG16, an LSTM and ResNet-50 on four workers differed from their mean by.
REAL = (
    -11, -9, 19, -70, 33, -1, -15, 53, -54, 6, 48, -39, -12, 43, 9, 7, -9, -18, 54, -21, -38, 25, 25, 5, -9, -7, 13, -17,
    -10, -118, 83, 35, -28, -1, -60, 29, 60,
)  # fmt: skip


def of_real_trials(draw: random.Random) -> Iterator[float]:
    while True:
        yield draw.choice(REAL) * draw.choice((1, -1)) / 1000


@pytest.mark.parametrize("noise", [of_real_trials, stalls, drift, neighbours])
def test_who_is_faster_wins_and_who_is_not_does_not(noise: Noise) -> None:
    assert play(Trial, 0.90, noise, 300)[0] >= 0.93
    assert play(Trial, 0.95, noise, 300)[0] >= 0.87
    assert play(Trial, 1.00, noise, 300)[0] <= 0.05
    assert play(Trial, 1.05, noise, 300)[0] <= 0.005


@pytest.mark.parametrize("noise", [of_real_trials, stalls, drift, neighbours])
def test_fp32_and_bf16_win_where_a_plan_is_slower(noise: Noise) -> None:
    assert play(Trial, 0.95, noise, 300, plain=True)[0] >= 0.93
    assert play(Trial, 1.05, noise, 300, plain=True)[0] <= 0.02


def test_who_counts_pairs_misses_who_is_faster() -> None:
    assert play(Counting, 0.95, of_real_trials, 300)[0] < 0.7


def test_who_believes_low_odds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "WIN", 3 * ONE)
    assert play(Trial, 1.00, of_real_trials, 300)[0] > 0.05


def test_limits_are_what_the_page_says() -> None:
    assert (PAIRS, TRIALS, WIN, YIELD, LOSE) == (16, 2, 20 * ONE, 4 * ONE, 5 * ONE // 2)
