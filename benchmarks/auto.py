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
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.auto.explain import Explanation
from grace.predict.links import link
from grace_bench.network.namespaces import INTERFACE, PORT, Network, address, environment
from grace_bench.tasks import Task, find_task

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


class Contender:
    """A model that trains with one method."""

    def __init__(self, task: Task, method: str):
        self.task = task
        torch.manual_seed(0)
        self.model = DistributedDataParallel(task.model(), gradient_as_bucket_view=True)
        self.optimizer = task.optimizer(self.model)
        self.handle = grace.attach(self.model, method, optimizer=self.optimizer)
        self.batches = task.batches(dist.get_rank(), dist.get_world_size(), 0)
        self.done = 0

    def step(self) -> float:
        """One step; its seconds."""
        start = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.lr(min(self.done, self.task.steps - 1))
        self.optimizer.zero_grad()
        torch.autograd.backward(self.task.loss(self.model, next(self.batches)))
        self.optimizer.step()
        self.done += 1
        return time.perf_counter() - start

    def explain(self) -> Explanation:
        """What ``auto`` has chosen."""
        found = self.handle.explain()  # type: ignore[attr-defined]
        assert isinstance(found, Explanation)
        return found


@dataclass
class Phase:
    """What happened while nothing changed. steps: of ``auto``, seconds. turns: of fp32 and bf16. first: step of the first."""

    name: str
    first: int = 0
    steps: list[float] = field(default_factory=list)
    turns: dict[str, list[float]] = field(default_factory=dict)
    began: str = ""
    ended: str = ""
    changes: list[int] = field(default_factory=list)
    events: list[tuple[int, str]] = field(default_factory=list)

    def row(self) -> list[str]:
        """Of the table."""
        base = {name: statistics.median(times) for name, times in self.turns.items()}
        better = min(base.values())
        last = max(self.changes, default=0)
        kept = statistics.median(self.steps[last:] or self.steps)
        noticed = [step for step, text in self.events if text.startswith("steps take")]
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
    """What each worker does."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    world = dist.get_world_size()
    task = find_task(options.task)
    task.workers, task.steps = world, 10_000
    task.load_synthetic() if options.data == "synthetic" else task.load(None)
    task.batch = options.batch or task.batch
    baselines = {name: Contender(task, name) for name in BASELINES}
    chooser = Contender(task, options.auto)
    for _ in range(WARM):
        chooser.step()
    phases = []
    for number, name in enumerate(_phases(options)):
        _hand_over(number)
        phases.append(_train(Phase(name, chooser.done), chooser, baselines, options.steps))
        if dist.get_rank() == 0:
            last = phases[-1]
            sys.stderr.write(f"{name}: {last.began} -> {last.ended}, {1e3 * statistics.median(last.steps):.0f} ms\n")
    if dist.get_rank() == 0:
        found = {
            "phases": [vars(one) for one in phases],
            "rows": [one.row() for one in phases],
            "auto": chooser.explain().as_dict(),
            "explained": str(chooser.explain()),
        }
        Path(options.out).write_text(json.dumps(found, indent=1))
    dist.barrier()
    os._exit(0)


def _train(phase: Phase, chooser: Contender, baselines: dict[str, Contender], steps: int) -> Phase:
    """The steps of a phase."""
    phase.began = _chosen(chooser)
    for k in range(steps):
        if k % EVERY == EVERY // 2:
            for name, one in baselines.items():
                dist.barrier()
                phase.turns.setdefault(name, []).extend([one.step() for _ in range(TURN)][1:])
            dist.barrier()
            chooser.step()  # the first after a turn is not counted
        phase.steps.append(chooser.step())
    found = chooser.explain()
    # In counted steps: one in EVERY has another beside it.
    phase.events = [(_counted(step - phase.first), text) for step, text in found.history if step >= phase.first]
    won = [one.step for one in found.trials if one.won and one.step >= phase.first]
    phase.changes = [_counted(step - phase.first) for step in won]
    phase.ended = _chosen(chooser)
    return phase


def _counted(step: int) -> int:
    return step - (step + EVERY // 2) // (EVERY + 1)


def _chosen(chooser: Contender) -> str:
    found = chooser.explain()
    return "measuring" if found.chosen is None else found.candidates[found.chosen].words


def _hand_over(number: int) -> None:
    """Rank 0 asks who started it to begin a phase; the others wait."""
    if dist.get_rank() == 0:
        sys.stdout.write(f"phase {number}\n")
        sys.stdout.flush()
        sys.stdin.readline()
    dist.barrier()


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
    with Network(link(names[0]), options.workers) as network, contextlib.ExitStack() as neighbours:
        workers = []
        for rank in range(options.workers):
            place = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.workers), "MASTER_PORT": str(PORT),
                "MASTER_ADDR": address(0), "GLOO_SOCKET_IFNAME": INTERFACE,
            }  # fmt: skip
            command = [*network.enter(rank), sys.executable, "-m", "benchmarks.auto", *sys.argv[1:]]
            pipes: dict[str, Any] = {} if rank else {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            workers.append(subprocess.Popen(command, env={**environment(), **place}, text=True, **pipes))
        asks, answers = workers[0].stdout, workers[0].stdin
        assert asks is not None
        assert answers is not None
        for line in asks:
            number = int(line.split()[1])
            if options.noise:
                if number:
                    neighbours.enter_context(burning())
            elif number:
                network.change(link(names[number]))
            answers.write("go\n")
            answers.flush()
        failed = [worker.wait() for worker in workers]
    if any(failed):
        raise SystemExit(f"workers ended with {failed}")


def main() -> None:
    """Starts the workers, and shows what they found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto", description=__doc__)
    parser.add_argument("--task", default="vgg16_cifar")
    parser.add_argument("--data", default="synthetic", help="synthetic, or embedded")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2, help="samples of a worker and step")
    parser.add_argument("--links", default="1gbit,10gbit,1gbit", help="one after the other; with --noise the first")
    parser.add_argument("--noise", action="store_true", help="a neighbour instead of links that change")
    parser.add_argument("--auto", default=AUTO, help="with its knobs: auto:quality=fast")
    parser.add_argument("--steps", type=int, default=260, help="of a phase")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", default="build/auto.json", help="what rank 0 writes")
    options = parser.parse_args()
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    if "RANK" in os.environ:
        work(options)
    before, began = os.getloadavg()[0], time.monotonic()
    start(options)
    found = json.loads(Path(options.out).read_text())
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    lines = [HEADS, ["---"] * len(HEADS), *found["rows"]]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    sys.stdout.write(
        f"{options.task}, batch {options.batch}, {options.workers} workers, {options.auto}; load {before:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after; {time.monotonic() - began:.0f} s\n{text}\n\n{found['explained']}\n"
    )


if __name__ == "__main__":
    main()
