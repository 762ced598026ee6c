"""The floor of a step, by experiment: ``python -m benchmarks.ladder``.

Four workers train the same model in nine ways, each with one thing more than the one before: the bare model; DDP with a hook
that does nothing; a pass over the gradients; the method's collectives; its codecs, on one lane or two; the product. They take
turns in rounds, so that a machine that changes its pace does not decide; medians over rounds with their range, of the wall
clock and of processor time, and as ratios to the bare model of the same round. The difference of two rungs is a price. Where
the method misses the goal, the rung above the goal says which part of it cannot be paid.

About five minutes for two links on two idle cores and some 10 GB of memory; load before and after is said.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks import contenders
from benchmarks.ladder.rungs import RECORDS, RUNGS
from grace.predict.links import link

GOALS = {"1gbit": 1.10, "10gbit": 1.15}  # of the bare model's step
HEADS = ("rung", "what runs", "wall, ms", "times F0", "processor, ms", "more than the rung before, ms")
_BEFORE = {"F5b": "F5", "F6": "F5", "F7": "F6", "F5": "F4"}  # a rung's price is its difference to this one

Rounds = list[dict[str, tuple[float, float]]]  # of each rung: wall and processor seconds of a step


def work(options: argparse.Namespace) -> None:
    """The work of each worker."""
    warnings.simplefilter("ignore")
    task = contenders.begin(options)
    wanted = [rung for rung in RUNGS if rung.name in options.rungs.split(",")]
    rungs = {rung.name: rung.make(task, options.method) for rung in wanted}
    for name, rung in rungs.items():
        for _ in range(RECORDS + 2):
            rung.step()
        contenders.tell(f"{name} is ready")
    links: dict[str, Rounds] = {}
    for number, name in enumerate(options.links.split(",")):
        contenders.hand_over(number)
        for rung in rungs.values():  # over the new link
            rung.step()
        rounds: Rounds = []
        for k in range(options.rounds):
            order = list(rungs) if k % 2 == 0 else list(rungs)[::-1]
            rounds.append({rung: rungs[rung].turn(options.steps) for rung in order})
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, rounds)
        links[name] = [
            {
                rung: (max(part[k][rung][0] for part in told), statistics.mean(part[k][rung][1] for part in told))
                for rung in rungs
            }
            for k in range(options.rounds)
        ]  # fmt: skip
        contenders.tell(f"{name} is measured")
    if dist.get_rank() == 0:
        Path(options.out).write_text(json.dumps(links, indent=1))
    contenders.end()


# ---- what is shown --------------------------------------------------------------------------------------------------
def rows(rounds: Rounds) -> list[list[str]]:
    """The table of one link."""
    lines = []
    before = ""
    for rung in RUNGS:
        name = rung.name
        if name not in rounds[0]:
            continue
        base = _BEFORE.get(name, before)
        price = ""
        if base in rounds[0]:
            price = spread([1e3 * (turns[name][0] - turns[base][0]) for turns in rounds], 0)
            price += f", to {base}" if base != before else ""
        lines.append(
            [
                name,
                rung.words,
                spread([1e3 * turns[name][0] for turns in rounds], 0),
                spread([ratio(turns, name) for turns in rounds], 2) if "F0" in rounds[0] else "",
                spread([1e3 * turns[name][1] for turns in rounds], 0),
                price,
            ]
        )
        before = name
    return lines


def ratio(turns: Mapping[str, tuple[float, float]], rung: str) -> float:
    """Ratio of a rung's step to the bare model's, in the same round."""
    return turns[rung][0] / turns["F0"][0]


def spread(values: Sequence[float], digits: int) -> str:
    """The median over rounds, and the range.

    >>> spread([1.0, 3.0, 2.0], 1)
    '2.0 (1.0 to 3.0)'
    """
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def verdicts(name: str, rounds: Rounds, goal: float) -> list[str]:
    """Verdicts on the goal, and on two lanes."""
    medians = {rung: statistics.median(ratio(turns, rung) for turns in rounds) for rung in rounds[0]}
    lines = []
    if "F6" in medians:
        if medians["F6"] <= goal:
            lines.append(
                f"{name}: the product takes {medians['F6']:.2f} of the bare model's step: the goal of {goal:.2f} is met."
            )
        else:
            above = next((rung for rung in RUNGS if medians.get(rung.name, 0.0) > goal), None)
            assert above is not None
            lines.append(
                f"{name}: the product takes {medians['F6']:.2f} of the bare model's step, the goal is {goal:.2f}: "
                f"{above.name} ({above.words}) is the first rung above it, with {medians[above.name]:.2f}."
            )  # fmt: skip
    if "F5b" in medians and "F5" in medians:
        gains = [1 - turns["F5b"][0] / turns["F5"][0] for turns in rounds]
        better = sum(gain > 0 for gain in gains)
        lines.append(
            f"{name}: two lanes gain {statistics.median(gains):.1%} ({min(gains):.1%} to {max(gains):.1%}) of F5's step, "
            f"and are faster in {better} of {len(gains)} rounds."
        )
    return lines


def show(links: Mapping[str, Rounds], options: argparse.Namespace) -> str:
    """All tables, and what they say."""
    parts = []
    for name, rounds in links.items():
        parts.append(f"{name}, {options.method}:\n\n{contenders.markdown(HEADS, rows(rounds))}\n")
        if "F0" in rounds[0]:
            parts.append("\n".join(verdicts(name, rounds, GOALS.get(name, min(GOALS.values())))) + "\n")
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts the workers, and shows what they found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ladder", description=__doc__)
    contenders.add_options(parser, workers=4)
    parser.add_argument("--method", default="qsgd:bits=4")
    parser.add_argument("--links", default="1gbit,10gbit", help="one after the other; or none, for the loopback")
    parser.add_argument("--rungs", default=",".join(rung.name for rung in RUNGS), help="which of them; F0 is the limit")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="of a turn, after one that is not counted")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", default="build/ladder.json", help="what is written: all samples")
    options = parser.parse_args(arguments)
    if unknown := {*options.rungs.split(",")} - {rung.name for rung in RUNGS}:
        parser.error(f"--rungs: {', '.join(sorted(unknown))}; legal: {', '.join(rung.name for rung in RUNGS)}")
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    if "RANK" in os.environ:
        work(options)
    around, links = contenders.Surroundings(), options.links.split(",")
    contenders.start(
        "benchmarks.ladder", links[0], options.workers,
        lambda number, network: network.change(link(links[number])) if number and network is not None else None,
    )  # fmt: skip
    measured = json.loads(Path(options.out).read_text())
    Path(options.out).write_text(json.dumps({**around.as_dict(), "links": measured}, indent=1))
    sys.stdout.write(
        Path(options.out).read_text() if options.json else
        f"{options.task}, batch {options.batch}, {options.workers} workers, {options.rounds} rounds of {options.steps} steps; "
        f"{around}\n\n{show(measured, options)}"
    )  # fmt: skip


if __name__ == "__main__":
    main()
