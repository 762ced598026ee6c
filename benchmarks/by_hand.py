"""``auto`` beside everything that could be chosen by hand: ``python -m benchmarks.by_hand --task TASK --link LINK``.

One cell, a task over links of one speed. A model trains under ``auto`` until it has settled: what it has to try is tried, or
waits for its budget. Another one then takes each method of the same class in turn. After a first look at all of them those
that are not hopeless, fp32 and bf16, and ``auto`` take turns in rounds, which decide: how fast ``auto`` is beside the better
of fp32 and bf16 in the same round (0.98 or more), and how long its step takes beside that of the best method by hand (1.05 or
less). Steps of a trial or look of ``auto`` are not among those that are timed; what it spends is told beside.

Whether a step of ``auto`` is longer for what ``auto`` itself does, ``--pairs 12`` says: turns of it and of the same method by
hand, one after the other, in wall seconds and in processor seconds, which know nothing of neighbours.

One to two minutes on two idle cores, a model with steps of a second somewhat more. ``resnet50_64:ResNet50At64`` needs
``PYTHONPATH=docs/examples``. Load before and after is said, and all samples are in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

import grace
from benchmarks import contenders
from benchmarks.contenders import Attached
from grace.auto.classes import LOOSE, NAMES, permitted
from grace.auto.explain import trial_line
from grace.auto.settings import Auto
from grace.run.optimizer import read_settings

AUTO, BASELINES = "auto", ("none", "bf16")
FASTER, SLOWER = 0.98, 1.05  # goals: of the better baseline's speed, and of the best step by hand
WITHIN = 1.4  # times the best at first sight: who takes longer is hopeless
LEAST = 3  # rounds
TWICE = 2.5  # times the best at first sight: who takes no longer is looked at once more
_CHECK = 5  # steps after which it is asked whether auto has settled
_AGAIN = 3  # times that a turn is done again in which auto was trying something

T = TypeVar("T")
Rounds = Sequence[Mapping[str, float]]  # of each contender: seconds of a step
Pair = dict[str, tuple[float, float]]  # of "auto", and of its method by "hand": seconds and processor seconds of a step


def work(options: argparse.Namespace) -> None:
    """The work of each worker."""
    warnings.simplefilter("ignore")
    task = contenders.begin(options)
    began = time.monotonic()
    chooser = Attached(task, options.auto)
    settled = settle(chooser, options.settle)
    contenders.tell(f"auto at step {chooser.done}: {settled}; {chosen(chooser)}")
    other = Attached(task, "none")
    settings = Auto.read(options.auto)
    quality = settings.quality if settings.error is None else LOOSE
    names, _ = permitted(
        quality, dist.get_world_size(), read_settings(chooser.optimizer), settings.methods or None,
        memoryless=settings.error is not None, goal=settings.goal,
    )  # fmt: skip
    methods = {name: grace.method(name) for name in names}
    first: dict[str, float] = {}

    def see(name: str) -> None:
        other.handle.switch(methods[name])
        first[name] = alike(min(first.get(name, 1e9), other.turn(1)[0]))  # so that all look at the same ones
        contenders.tell(f"{NAMES.get(name, name)}: {1e3 * first[name]:.0f} ms at first sight")

    for name in methods:
        see(name)
    for name in [name for name in methods if options.within < first[name] / min(first.values()) <= TWICE]:
        see(name)  # it may have been the machine
    kept = keep(first, options.within, chosen_methods(chooser))
    rounds: list[dict[str, float]] = []
    while len(rounds) < LEAST or not alike(time.monotonic() - began > options.seconds):
        order = [AUTO, *kept]
        seconds = {}
        for name in order if len(rounds) % 2 == 0 else order[::-1]:
            if name == AUTO:
                seconds[name], _ = take_turn(chooser, options.steps)
            else:
                other.handle.switch(methods[name])
                seconds[name], _ = other.turn(options.steps)
        rounds.append(seconds)
    used = sorted(chosen_methods(chooser))
    pairs: list[Pair] = []
    if len(used) == 1:
        other.handle.switch(methods[used[0]])
        pairs = [pair(chooser, other, options.steps, number % 2 == 0) for number in range(options.pairs)]
    if dist.get_rank() == 0:
        explained = chooser.explain()
        record = {
            "first": first, "rounds": rounds, "pairs": pairs, "settled": settled, "chosen": chosen(chooser),
            "steps": chooser.done, "spent": sum(explained.spent.values()), "auto": explained.as_dict(),
            "explained": str(explained),
            "trials": [
                trial_line(explained.candidates[trial.rival].words, explained.candidates[trial.incumbent].words, trial)
                for trial in explained.trials
            ],
        }  # fmt: skip
        Path(options.out).write_text(json.dumps(record, indent=1))
    contenders.end()


def keep(first: Mapping[str, float], within: float, used: Collection[str]) -> list[str]:
    """The methods of the rounds: the baselines, those that ``auto`` uses, and those that are not hopeless at first sight.

    >>> keep({"none": 0.9, "bf16": 0.5, "topk": 0.1, "natural": 0.3, "fp8": 0.13}, 1.4, {"natural"})
    ['none', 'bf16', 'topk', 'natural', 'fp8']
    >>> keep({"none": 0.9, "bf16": 0.5, "topk": 0.1, "natural": 0.3, "fp8": 0.15}, 1.4, ())
    ['none', 'bf16', 'topk']
    """
    most = within * min(first.values())
    return [name for name, seconds in first.items() if name in BASELINES or name in used or seconds <= most]


def chosen_methods(chooser: Attached) -> set[str]:
    """The methods of the plan that ``auto`` uses."""
    explained = chooser.explain()
    return {bucket.method for bucket in explained.buckets}


def settle(chooser: Attached, seconds: float) -> str:
    """Trains until ``auto`` has settled, or for so long; how that ended."""
    began = time.monotonic()
    while not alike(time.monotonic() - began > seconds):
        for _ in range(_CHECK):
            chooser.step()
        state = chooser.explain()
        if state.chosen is not None and not trying(chooser):
            if state.hopeless is not None:
                return f"settled: {state.hopeless}"
            if state.waits is not None:
                return f"settled: {state.waits}"
            if not queue_of(chooser):
                return "settled: nothing is left to try"
    return f"not settled in {seconds:.0f} s"


def alike(value: T) -> T:
    """Gives all ranks the value of rank 0."""
    values: list[T] = [value]
    dist.broadcast_object_list(values)
    return values[0]


def trying(chooser: Attached) -> bool:
    """True if a trial goes on; the same on all ranks."""
    controller = chooser.handle._driver.controller  # type: ignore[attr-defined]
    return controller is not None and bool(controller.trying)


def queue_of(chooser: Attached) -> list[Any]:
    """The plans that are still to be tried; the same on all ranks."""
    controller = chooser.handle._driver.controller  # type: ignore[attr-defined]
    return [] if controller is None else list(controller.queue)


def chosen(chooser: Attached) -> str:
    """The methods that ``auto`` uses, in words."""
    explained = chooser.explain()
    return "measuring" if explained.chosen is None else explained.candidates[explained.chosen].words


def take_turn(chooser: Attached, steps: int) -> tuple[float, float]:
    """Seconds of a step outside trials, and of this worker's processor."""
    seconds = cpu = 0.0
    for _ in range(_AGAIN):
        while trying(chooser):
            chooser.step()
        seconds, cpu = chooser.turn(steps)
        if not trying(chooser):
            break
    return seconds, cpu / steps


def pair(chooser: Attached, other: Attached, steps: int, first: bool) -> Pair:
    """A turn of ``auto`` and one of its method by hand. ``first``: whether ``auto`` comes first."""
    turns: Pair = {}
    for name in ("auto", "hand") if first else ("hand", "auto"):
        if name == "auto":
            turns[name] = take_turn(chooser, steps)
        else:
            seconds, cpu = other.turn(steps)
            turns[name] = seconds, cpu / steps
    return turns


# ---- what is shown --------------------------------------------------------------------------------------------------
def judge(values: Sequence[float], bound: float, *, least: bool) -> str:
    """A goal's verdict by the median, the range, and how many rounds say otherwise.

    >>> judge([1.0, 1.02, 0.97], 0.98, least=True)
    '1.00 (0.97 to 1.02), goal at least 0.98: met; 1 of 3 rounds says otherwise'
    """
    middle = statistics.median(values)
    met = middle >= bound if least else middle <= bound
    others = sum((value >= bound if least else value <= bound) != met for value in values)
    word = f"goal at {'least' if least else 'most'} {bound:g}: {'met' if met else 'not met'}"
    doubt = f"; {others} of {len(values)} rounds say{'s' if others == 1 else ''} otherwise" if others else ""
    return f"{_spread(values)}, {word}{doubt}"


def verdicts(rounds: Rounds) -> list[str]:
    """Both goals, judged by the rounds. The best by hand is the one with the least median."""
    better = [min(row[name] for name in BASELINES) / row[AUTO] for row in rounds]
    middles = {name: statistics.median(row[name] for row in rounds) for name in rounds[0] if name != AUTO}
    best = min(middles, key=lambda name: middles[name])
    by_hand = [row[AUTO] / row[best] for row in rounds]
    return [
        f"auto's speed / the better of fp32 and bf16: {judge(better, FASTER, least=True)}",
        f"auto's step / the best by hand, {NAMES.get(best, best)}: {judge(by_hand, SLOWER, least=False)}",
    ]


def added(pairs: Sequence[Pair]) -> list[str]:
    """The time that ``auto`` itself adds to a step: a line, if pairs were measured.

    >>> for line in added([{"auto": (0.51, 0.2), "hand": (0.50, 0.2)}, {"auto": (0.49, 0.2), "hand": (0.50, 0.2)}]):
    ...     print(line)
    auto's step / the same method's by hand, 2 pairs of turns: 1.00 (0.98 to 1.02); processor seconds 1.00 (1.00 to 1.00)
    """
    if not pairs:
        return []
    wall, cpu = ([turns["auto"][which] / turns["hand"][which] for turns in pairs] for which in (0, 1))
    return [
        f"auto's step / the same method's by hand, {len(pairs)} pairs of turns: {_spread(wall)}; "
        f"processor seconds {_spread(cpu)}"
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def rows(record: Mapping[str, Any]) -> list[list[str]]:
    """A line for each contender, the fastest first; who was hopeless has no rounds."""
    rounds: Rounds = record["rounds"]
    lines = []
    for name in sorted(rounds[0], key=lambda name: statistics.median(row[name] for row in rounds)):
        values = [1e3 * row[name] for row in rounds]
        share = [row[AUTO] / row[name] for row in rounds]
        words = f"auto: {record['chosen']}" if name == AUTO else NAMES.get(name, name)
        lines.append(
            [
                words,
                f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})",
                f"{statistics.median(share):.2f} ({min(share):.2f} to {max(share):.2f})",
            ]
        )
    left = {name: ms for name, ms in record["first"].items() if name not in rounds[0]}
    return [
        *lines,
        *([NAMES.get(name, name), f"{1e3 * ms:.0f} at first sight", "left out"] for name, ms in left.items()),
    ]


HEADS = ("method", "step, ms (range over rounds)", "auto's step / this one's, same round")


def show(record: Mapping[str, Any], options: argparse.Namespace) -> str:
    """The cell in words and numbers."""
    lines = [
        f"{options.task} over {options.link}, {options.workers} workers, "
        f"{len(record['rounds'])} rounds of {options.steps} steps",
        "", contenders.markdown(HEADS, rows(record)), "", *verdicts(record["rounds"]), *added(record["pairs"]), "",
        f"auto: {record['settled']}; {record['steps']} steps; spent {record['spent']:.1f} s in all.", *record["trials"],
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts the workers, and shows what they found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.by_hand", description=__doc__)
    contenders.add_options(parser, workers=4)
    parser.add_argument("--link", default="1gbit", help="1gbit, 10gbit; none: this machine's loopback")
    parser.add_argument("--auto", default=AUTO, help="with its knobs: auto:goal=time")
    parser.add_argument("--steps", type=int, default=2, help="of a turn, after one that is not counted")
    parser.add_argument(
        "--seconds", type=float, default=45.0, help="after which no round begins, but for the first three"
    )
    parser.add_argument("--settle", type=float, default=60.0, help="seconds that auto may take to settle")
    parser.add_argument(
        "--within", type=float, default=WITHIN, help="times the best at first sight that stays in the rounds"
    )
    parser.add_argument("--pairs", type=int, default=0, help="of auto and its method by hand: what auto adds to a step")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", default="build/by_hand.json", help="what is written: all samples")
    options = parser.parse_args(arguments)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    if "RANK" in os.environ:
        work(options)
    around = contenders.Surroundings()
    contenders.start("benchmarks.by_hand", options.link, options.workers)
    record = json.loads(Path(options.out).read_text())
    Path(options.out).write_text(json.dumps({**around.as_dict(), **record}, indent=1))
    sys.stdout.write(Path(options.out).read_text() if options.json else f"{show(record, options)}\n{around}\n")


if __name__ == "__main__":
    main()
