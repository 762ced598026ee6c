"""The share of trials of ``auto`` that end right: ``python -m benchmarks.trials``, some ten seconds.

Trials are simulated: a challenger takes in truth so many times what the incumbent takes, and each pair of blocks differs from
that by noise. The rule is :class:`grace.auto.trial.Trial`, and beside it the one before, seven of at most eight pairs. Noise
is made up, and drawn from trials that have run on a machine, if files of ``benchmarks.by_hand`` are given.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.contenders import markdown
from grace.auto.trial import Trial

STEP, NEEDED = 300_000_000, 9800  # nanoseconds; ten thousandths of what the incumbent takes
RATIOS = (0.90, 0.95, 0.97, 1.00, 1.05)
LEAST = 3  # pairs of a trial whose noise is taken
Noise = Callable[[random.Random], Iterator[float]]  # of logarithms of a pair's ratio


class Counting(Trial):
    """Seven of at most eight pairs."""

    __slots__ = ()

    def verdict(self, *, plain: bool) -> bool | None:
        """True if the rival has won; None: more pairs are needed."""
        return False if self.worse > 1 else True if self.better >= 7 else None


RULES = {"odds": Trial, "seven of eight": Counting}


def normal(spread: float) -> Noise:
    """Noise of this standard deviation."""

    def draw(dice: random.Random) -> Iterator[float]:
        while True:
            yield dice.gauss(0, spread)

    return draw


def stalls(dice: random.Random) -> Iterator[float]:
    """Noise of 3 %, and in one pair of ten eight times as much."""
    while True:
        yield dice.gauss(0, 0.03) * (8 if dice.random() < 0.1 else 1)


def drift(dice: random.Random) -> Iterator[float]:
    """The machine's pace wanders by 5 % from block to block, and 1.5 % come on top."""
    pace = 0.0
    while True:
        before, pace = pace, 0.8 * pace + dice.gauss(0, 0.05)
        yield (pace - before) * dice.choice((1, -1)) + dice.gauss(0, 0.015)


def neighbours(dice: random.Random) -> Iterator[float]:
    """Noise of 3 %, and in one pair of four one of the blocks takes 1.4 times as long."""
    while True:
        yield dice.gauss(0, 0.03) + (0.336 * dice.choice((1, -1)) if dice.random() < 0.25 else 0)


MADE_UP: Mapping[str, Noise] = {
    "1 %": normal(0.01), "4 %": normal(0.04), "8 %": normal(0.08), "stalls": stalls, "drift": drift,
    "neighbours": neighbours,
}  # fmt: skip


def measured(paths: Sequence[Path]) -> Noise:
    """The noise of trials that have run: the difference of each pair from the mean of its trial."""
    noise: list[float] = []
    for path in paths:
        for trial in json.loads(path.read_text())["auto"]["trials"]:
            logs = [math.log(dense / own) for own, dense in trial["pairs"]]
            if len(logs) >= LEAST:  # the mean has taken a part of it
                middle, scale = statistics.mean(logs), math.sqrt(len(logs) / (len(logs) - 1))
                noise += [scale * (value - middle) for value in logs]

    def draw(dice: random.Random) -> Iterator[float]:
        while True:
            yield dice.choice(noise) * dice.choice((1, -1))

    return draw


def play(rule: type[Trial], ratio: float, noise: Noise, trials: int, *, plain: bool = False) -> tuple[float, float]:
    """The share of trials that the challenger wins, and the pairs of one, in the mean. ``plain``: it is fp32 or bf16.

    >>> play(Trial, 0.9, normal(0.0), 3)
    (1.0, 6.0)
    """
    won = pairs = 0
    for seed in range(trials):
        trial, around = rule(0, 1, ""), noise(random.Random(seed))
        while (verdict := trial.verdict(plain=plain)) is None:
            trial.add(STEP, round(STEP * ratio * math.exp(next(around))), 10_000 if plain else NEEDED)
        won, pairs = won + verdict, pairs + trial.count
    return won / trials, pairs / trials


def rows(noises: Mapping[str, Noise], trials: int) -> list[list[str]]:
    """A line for each noise and rule."""
    lines = []
    for name, noise in noises.items():
        for words, rule in RULES.items():
            results = [play(rule, ratio, noise, trials) for ratio in RATIOS]
            lines.append([name, words, *(f"{100 * share:.1f} %, {pairs:.0f}" for share, pairs in results)])
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trials", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="what benchmarks.by_hand has written")
    parser.add_argument("--trials", type=int, default=2000, help="of each noise, rule and ratio")
    options = parser.parse_args(arguments)
    noises = {**({"of real trials": measured(options.files)} if options.files else {}), **MADE_UP}
    heads = ("noise of a pair", "rule", *(f"{ratio:.2f}" for ratio in RATIOS))
    sys.stdout.write(markdown(heads, rows(noises, options.trials)) + "\n")


if __name__ == "__main__":
    main()
