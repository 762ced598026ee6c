"""Seconds to bf16's quality over a real link: ``python -m benchmarks.time_to_quality --task gpt_tiny --link 100mbit``.

Seconds are steps times the time of a step. Steps come from the survey's runs of the task, which train with the bits of real
workers (``grace survey frontier``): those of bf16 to 2 % of its own final quality, times the multiple of a method. The time
of a step is measured here, with all contenders in one run over one link, in rounds in which they take turns: fp32, bf16 and
PowerSGD as torch has them, ``auto`` for both goals once it has settled, and the methods that are given. What ``auto`` spends
on measuring and trying is added.

An interval multiplies the ends of both: the range of the multiple over pairs of seeds, and the range of a step over rounds.
Who does not reach bf16's quality, or of whom nobody knows, has no seconds, and says so. Torch's PowerSGD counts the steps of
Grace's of the same rank, whose exchange is the same.

Two to three minutes on two idle cores. Load before and after is said, and all samples are in the file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks import contenders
from benchmarks.by_hand import alike, chosen, chosen_methods, settle, take_turn
from benchmarks.contenders import Attached, Contender
from grace.errors import GraceError
from grace.predict.links import link as find_link
from grace.registry import method, spell
from grace_bench.runs.baselines import POWERSGD_RANK, TorchDDP
from grace_bench.survey.archive import read_archive
from grace_bench.survey.frontier import Multiple, Place, find_frontier
from grace_bench.survey.goals import GOAL, goal_of, steps_to
from grace_bench.survey.row import SurveyRow
from grace_bench.tasks import Task

LONG = Path(__file__).parent.parent / "docs/survey/long.parquet"
# Torch's own, and the method of Grace that trains as each does.
TORCH = {
    "ddp-fp32": ("fp32, torch's", "none"),
    "ddp-bf16": ("bf16, torch's hook", "bf16"),
    "ddp-powersgd": ("PowerSGD, torch's hook", f"powersgd:rank={POWERSGD_RANK}"),
}
AUTOS = {"auto:goal=steps": "steps", "auto:goal=time": "time"}
LEAST = 3  # rounds


class Torch(Contender):
    """A model under torch's ``DistributedDataParallel``, with its own all-reduce or one of its hooks."""

    def __init__(self, task: Task, name: str):
        super().__init__(task)
        self.model = TorchDDP(self.plain, name, dist.get_rank(), dist.get_world_size()).model


def work(options: argparse.Namespace) -> None:
    """The work of each worker."""
    warnings.simplefilter("ignore")
    task = contenders.begin(options)
    models: dict[str, Contender] = {name: Torch(task, name) for name in TORCH}
    models |= {name: Attached(task, name) for name in options.methods.split(";") if name}
    autos = {name: Attached(task, name) for name in AUTOS}
    settled = {}
    for name, chooser in autos.items():
        settled[name] = settle(chooser, options.settle)
        contenders.tell(f"{name} at step {chooser.done}: {settled[name]}; {chosen(chooser)}")
    rounds: list[dict[str, float]] = []
    began = time.monotonic()
    while len(rounds) < LEAST or not alike(time.monotonic() - began > options.seconds):
        order = [*models, *autos]
        seconds = {}
        for name in order if len(rounds) % 2 == 0 else order[::-1]:
            if name in autos:
                seconds[name], _ = take_turn(autos[name], options.steps)
            else:
                seconds[name], _ = models[name].turn(options.steps)
        rounds.append(seconds)
    if dist.get_rank() == 0:
        choices = {
            name: {
                "chosen": chosen(chooser), "methods": sorted(chosen_methods(chooser)), "settled": settled[name],
                "steps": chooser.done, "spent": sum(chooser.explain().spent.values()),
            }
            for name, chooser in autos.items()
        }  # fmt: skip
        record = {"rounds": rounds, "autos": choices}
        Path(options.out).write_text(json.dumps(record, indent=1))
    contenders.end()


# ---- what is shown --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reached:
    """Seconds to bf16's quality. steps: bf16's own, in the median. multiple: of these; None: nobody has measured it."""

    steps: float
    multiple: Multiple | None
    step: Sequence[float]
    spent: float = 0.0

    @property
    def seconds(self) -> float:
        """The median; infinite where bf16's quality was not reached, or nobody knows."""
        if self.multiple is None:
            return math.inf
        return self.steps * self.multiple.median * statistics.median(self.step) + self.spent

    def __str__(self) -> str:
        if self.multiple is None:
            return "nobody measured its steps"
        if not math.isfinite(self.seconds):
            return "not reached"
        if self.multiple.low is None or self.multiple.high is None:
            return f"{self.seconds:.0f} (fewer than three seeds)"
        ends = [
            self.steps * times * step + self.spent
            for times, step in ((self.multiple.low, min(self.step)), (self.multiple.high, max(self.step)))
        ]
        return f"{self.seconds:.0f} ({ends[0]:.0f} to {ends[1]:.0f})"


def find_places(rows: Sequence[SurveyRow], task: str) -> tuple[float, Mapping[str, Place]]:
    """bf16's steps to its own quality on a task, by its longest runs, in the median; and the places of all methods.

    Raises:
        SystemExit: bf16 has no runs on it.
    """
    there = {key: places for key, places in find_frontier(rows).items() if key[1] == task}
    if not there:
        raise SystemExit(
            f"the archive has no runs of bf16 on {task!r}; make some: grace survey run docs/survey/long.toml"
        )
    key = max(there, key=lambda key: key[2])
    runs = [row for row in rows if (row.protocol, row.task, row.steps) == key and row.method == GOAL]
    goal = goal_of({GOAL: runs})
    assert goal is not None
    return statistics.median(steps_to(row, goal) for row in runs), there[key]


def largest(methods: Sequence[str], places: Mapping[str, Place]) -> Multiple | None:
    """The multiple of a plan of several methods: the largest of theirs; None: one of them was not measured."""
    own = ["none" if name == "fp32" else name for name in methods]
    known = [places.get(spell(method(name))) for name in own]
    # Uncompressed sums of float32 count as bf16 does, where nobody ran them.
    there = [
        places[GOAL] if place is None and name == "none" else place for name, place in zip(own, known, strict=True)
    ]
    if not there or any(place is None for place in there):
        return None
    return max((place.steps for place in there if place is not None), key=lambda steps: (steps.median, steps.high or 0))


def judge(record: Mapping[str, Any], steps: float, places: Mapping[str, Place]) -> dict[str, Reached]:
    """All contenders, with their seconds to bf16's quality."""
    results = {}
    for name in record["rounds"][0]:
        auto = record["autos"].get(name)
        methods = [TORCH[name][1]] if name in TORCH else [name] if auto is None else auto["methods"]
        spent = 0.0 if auto is None else auto["spent"]
        results[name] = Reached(steps, largest(methods, places), [row[name] for row in record["rounds"]], spent)
    return results


HEADS = (
    "contender",
    "step, ms (range over rounds)",
    "steps to bf16's quality, as a multiple",
    "seconds to it",
    "times as soon as bf16",
)


def table(record: Mapping[str, Any], results: Mapping[str, Reached]) -> list[list[str]]:
    """A line for each contender, the soonest first."""
    plain = results["ddp-bf16"].seconds
    lines = []
    for name, reached in sorted(results.items(), key=lambda item: (item[1].seconds, statistics.median(item[1].step))):
        auto = record["autos"].get(name)
        words = TORCH[name][0] if name in TORCH else name if auto is None else f"{name}: {auto['chosen']}"
        step = [1e3 * seconds for seconds in reached.step]
        lines.append(
            [
                words,
                f"{statistics.median(step):.0f} ({min(step):.0f} to {max(step):.0f})",
                "not known" if reached.multiple is None else str(reached.multiple),
                str(reached),
                f"{plain / reached.seconds:.2f}" if math.isfinite(reached.seconds) else "-",
            ]
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts the workers, and shows what they found beside what the archive knows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_to_quality", description=__doc__)
    contenders.add_options(parser, workers=4)
    parser.set_defaults(task="gpt_tiny", data="embedded", batch=0)
    parser.add_argument("--link", default="100mbit", help="100mbit, 1gbit; none: this machine's loopback")
    parser.add_argument("--archive", default=str(LONG), help="of the survey's runs, whose steps count")
    parser.add_argument("--methods", default="qsgd:bits=4;powersgd:rank=4;topk:ratio=0.01", help="by hand, ; between")
    parser.add_argument("--steps", type=int, default=8, help="of a turn, after one that is not counted")
    parser.add_argument(
        "--seconds", type=float, default=45.0, help="after which no round begins, but for the first three"
    )
    parser.add_argument("--settle", type=float, default=45.0, help="seconds that each auto may take to settle")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", default="build/time_to_quality.json", help="what is written: all samples")
    options = parser.parse_args(arguments)
    if "RANK" in os.environ:
        work(options)
    try:  # before anything is measured
        steps, places = find_places(read_archive(Path(options.archive)), options.task)
        find_link(options.link)
        for name in filter(None, options.methods.split(";")):
            method(name)
    except (GraceError, OSError) as error:
        parser.error(str(error))
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    around = contenders.Surroundings()
    contenders.start("benchmarks.time_to_quality", options.link, options.workers)
    record = {**around.as_dict(), **json.loads(Path(options.out).read_text())}
    lines = table(record, judge(record, steps, places))
    record |= {
        "task": options.task,
        "link": options.link,
        "workers": options.workers,
        "bf16_steps": steps,
        "table": lines,
    }
    text = json.dumps(record, indent=1)
    Path(options.out).write_text(text)
    sys.stdout.write(
        text
        if options.json
        else f"{options.task} over {options.link}, {options.workers} workers, {len(record['rounds'])} rounds of "
        f"{options.steps} steps; bf16 reaches its quality, less 2 %, after {steps:g} steps\n\n"
        f"{contenders.markdown(HEADS, lines)}\n\n{around}\n"
    )


if __name__ == "__main__":
    main()
