"""``auto`` over links that change, and beside a neighbour who takes the cores: ``python -m benchmarks.auto``.

Workers train a model under ``auto`` over links that are made for it, and every so many steps take turns with fp32 and bf16 on
models of their own. Without options the links become ten times as fast in the middle, and slow again; with ``--noise`` they
stay, and a neighbour burns all cores for 10 of every 30 seconds in the second half. The table says, by phase, when ``auto``
noticed and looked, how many steps it took until it used what it then kept, and how fast that is beside the better of fp32 and
bf16 in the same phase. About four minutes on two idle cores; load before and after is said. ``--json`` prints all numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist

from benchmarks import contenders
from benchmarks.contenders import Attached
from grace.predict.links import link
from grace_bench.network.namespaces import ShapedNetwork

AUTO, BASELINES = "auto", ("none", "bf16")
# Steps of a baseline's turn, of which the first is not counted; steps between; before the clock.
TURN, EVERY, WARM = 3, 30, 8
SLOW = 1.5  # times the better baseline: a step that takes longer is a slow one
BURN, PERIOD = 10.0, 30.0  # seconds of the neighbour

_BURNER = """
import select, sys, time
start = time.monotonic()
while not select.select([sys.stdin], [], [], 0)[0]:
    if (time.monotonic() - start) % {period} > {burn}:
        time.sleep(0.1)
    else:
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass
"""


@dataclass
class Phase:
    """Events while nothing changed. steps: of ``auto``, seconds. turns: of fp32 and bf16. first: step of the first."""

    name: str
    first: int = 0
    steps: list[float] = field(default_factory=list)
    turns: dict[str, list[float]] = field(default_factory=dict)
    began: str = ""
    ended: str = ""
    changes: list[int] = field(default_factory=list)
    events: list[tuple[int, str]] = field(default_factory=list)

    def row(self) -> list[str]:
        """A row of the table."""
        base = {name: statistics.median(times) for name, times in self.turns.items()}
        better = min(base.values())
        last = max(self.changes, default=0)
        kept = statistics.median(self.steps[last:] or self.steps)
        noticed = [step for step, text in self.events if text.startswith(("steps take", "exchanges take"))]
        looked = [step for step, text in self.events if "the link again" in text]
        slow = row = 0
        for seconds in self.steps:
            row = row + 1 if seconds > SLOW * better else 0
            slow = max(slow, row)
        return [
            self.name,
            self.began if self.began == self.ended else f"{self.began} -> {self.ended}",
            _list(noticed),
            _list(looked),
            str(last) if self.changes else "kept",
            f"{1e3 * kept:.0f}",
            *(f"{1e3 * base[name]:.0f}" for name in BASELINES),
            f"{better / kept:.2f}",
            f"{better / statistics.mean(self.steps):.2f}",
            str(slow),
        ]


HEADS = (
    "phase", "plan", "noticed at", "looked at", "answered after", "auto, ms", "fp32, ms", "bf16, ms",
    "better of them / auto", "the same, all steps", "slow in a row",
)  # fmt: skip


def _list(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) or "-"


def work(options: argparse.Namespace) -> None:
    """The work of each worker."""
    task = contenders.begin(options)
    baselines = {name: Attached(task, name) for name in BASELINES}
    chooser = Attached(task, options.auto)
    for _ in range(WARM):
        chooser.step()
    phases = []
    for number, name in enumerate(_phases(options)):
        contenders.hand_over(number)
        phases.append(_train(Phase(name, chooser.done), chooser, baselines, options.steps))
        if dist.get_rank() == 0:
            last = phases[-1]
            contenders.tell(f"{name}: {last.began} -> {last.ended}, {1e3 * statistics.median(last.steps):.0f} ms")
    if dist.get_rank() == 0:
        record = {
            "phases": [vars(phase) for phase in phases],
            "rows": [phase.row() for phase in phases],
            "auto": chooser.explain().as_dict(),
            "explained": str(chooser.explain()),
        }
        Path(options.out).write_text(json.dumps(record, indent=1))
    contenders.end()


def _train(phase: Phase, chooser: Attached, baselines: dict[str, Attached], steps: int) -> Phase:
    """The steps of a phase."""
    phase.began = _chosen(chooser)
    for k in range(steps):
        if k % EVERY == EVERY // 2:
            for name, baseline in baselines.items():
                dist.barrier()
                phase.turns.setdefault(name, []).extend([baseline.step() for _ in range(TURN)][1:])
            dist.barrier()
            chooser.step()  # the first after a turn is not counted
        phase.steps.append(chooser.step())
    explained = chooser.explain()
    # In counted steps: one in EVERY has another beside it.
    phase.events = [(_counted(step - phase.first), text) for step, text in explained.history if step >= phase.first]
    won = [trial.step for trial in explained.trials if trial.won and trial.step >= phase.first]
    phase.changes = [_counted(step - phase.first) for step in won]
    phase.ended = _chosen(chooser)
    return phase


def _counted(step: int) -> int:
    return step - (step + EVERY // 2) // (EVERY + 1)


def _chosen(chooser: Attached) -> str:
    explained = chooser.explain()
    return "measuring" if explained.chosen is None else explained.candidates[explained.chosen].words


def _phases(options: argparse.Namespace) -> list[str]:
    names = options.links.split(",")
    return [f"{names[0]}, alone", f"{names[0]}, a neighbour"] if options.noise else names


@contextlib.contextmanager
def burning() -> Iterator[None]:
    """A neighbour on all cores; it ends with this process, however that ends."""
    code = _BURNER.format(burn=BURN, period=PERIOD)
    burners = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for burner in burners:
            assert burner.stdin is not None
            burner.stdin.close()
            burner.wait()


def start(options: argparse.Namespace) -> None:
    """Starts the workers, and changes links and neighbours when rank 0 asks for it."""
    names = options.links.split(",")
    with contextlib.ExitStack() as neighbours:

        def phase(number: int, network: ShapedNetwork | None) -> None:
            if number and options.noise:
                neighbours.enter_context(burning())
            elif number and network is not None:
                network.change(link(names[number]))

        contenders.start("benchmarks.auto", names[0], options.workers, phase)


def main() -> None:
    """Starts the workers, and shows what they found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto", description=__doc__)
    contenders.add_options(parser, workers=2)
    parser.add_argument("--links", default="1gbit,10gbit,1gbit", help="one after the other; with --noise the first")
    parser.add_argument("--noise", action="store_true", help="a neighbour instead of links that change")
    parser.add_argument("--auto", default=AUTO, help="with its knobs: auto:goal=time")
    parser.add_argument("--steps", type=int, default=260, help="of a phase")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", default="build/auto.json", help="what rank 0 writes")
    options = parser.parse_args()
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    if "RANK" in os.environ:
        work(options)
    around = contenders.Surroundings()
    start(options)
    record = json.loads(Path(options.out).read_text())
    if options.json:
        sys.stdout.write(json.dumps(record) + "\n")
        return
    sys.stdout.write(
        f"{options.task}, batch {options.batch}, {options.workers} workers, {options.auto}; {around}\n"
        f"{contenders.markdown(HEADS, record['rows'])}\n\n{record['explained']}\n"
    )


if __name__ == "__main__":
    main()
