"""Decoupled learners as processes, one of which is killed again and again: ``python -m benchmarks.decoupled``.

Three runs of the same length: undisturbed; one learner is killed with SIGKILL every so many seconds, and started again at
once; one learner is at half speed. Goodput of the others is their steps, as a share of what the same learners made in the
undisturbed run. A *stop* is the longest time in which none of them has ended a step, a *pause* that between two steps of one
of them; beside these, the loss of the merged parameters, and whether all goals are met. A learner that is dead leaves its
processor to the others, so that more than 100 % can come out.

Learning rates follow the task's schedule by the share of the time that has passed, for all learners alike, and gradients are
clipped as the task says: at a peak rate that never falls, the loss at the end is noise, and fewer steps are a worse loss.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import grace
from benchmarks.contenders import markdown
from grace.decoupled import read_parameters
from grace_bench.tasks import find_task
from grace_bench.workers.ports import free_port

RUNS = ("undisturbed", "killed", "half speed")
# Of the undisturbed run: steps of the others, and the loss; a stop is no longer than so many of its longest pauses.
GOODPUT, LOSS, STOP = 0.95, 0.02, 2.0
_SHARES = 1000  # parts of the time, for the schedule


def learn(options: argparse.Namespace) -> None:
    """Trains until the deadline; writes when each step ended, and checkpoints."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task = find_task(options.task)
    task.load(None)
    model = task.model()
    optimizer = task.optimizer(model)
    folder = Path(options.folder)
    file = folder / f"{options.learner}.pt"
    saved = torch.load(file, weights_only=True) if file.exists() else None
    if saved is not None:
        optimizer.load_state_dict(saved["optimizer"])
    handle = grace.decoupled(
        model, optimizer, options.address, name=f"l{options.learner}", every=options.every, fragments=options.fragments,
        overlap=options.overlap, method=options.method, state=saved and saved["learner"], timeout=60.0,
    )  # fmt: skip
    task.steps = _SHARES
    batches = task.batches(options.learner, options.learners, handle.stats.steps)
    with (folder / f"{options.learner}.steps").open("a", encoding="utf-8") as steps:
        until = folder / "until"
        while not until.exists() or time.time() < float(until.read_text()):
            begins = time.monotonic()
            optimizer.zero_grad()
            torch.autograd.backward(task.loss(model, next(batches)))
            if task.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
            passed = share_of_time(float(until.read_text()) if until.exists() else None, options.seconds, time.time())
            for group in optimizer.param_groups:
                group["lr"] = task.lr(int(passed * (_SHARES - 1)))
            optimizer.step()
            if options.slow:
                time.sleep(time.monotonic() - begins)
            steps.write(f"{time.time()}\n")
            steps.flush()
            if handle.stats.steps % options.keep_every == 0:
                state = {"learner": handle.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, f"{file}.new")
                os.replace(f"{file}.new", file)
    torch.save(dict(model.named_buffers()), folder / f"{options.learner}.buffers")
    handle.detach()


def share_of_time(until: float | None, seconds: float, now: float) -> float:
    """The share of the run that has passed, 0 to 1; 0 before it begins, when nobody knows when it ends.

    >>> [share_of_time(until, 100.0, 50.0) for until in (None, 200.0, 110.0, 40.0)]
    [0.0, 0.0, 0.4, 1.0]
    """
    return 0.0 if until is None else min(1.0, max(0.0, 1 - (until - now) / seconds))


def measure(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """The row of a run."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ending:  # nobody outlives it
        folder, port = Path(name), free_port()
        serve = f"import grace; grace.decoupled.serve('127.0.0.1:{port}', learners={options.learners}, "
        serve += f"quorum={options.quorum}, lr={options.outer_lr}, momentum={options.outer_momentum}, "
        serve += f"checkpoint={str(folder / 'syncer.pt')!r}, save_every=5.0)"
        syncer = subprocess.Popen([sys.executable, "-c", serve])
        ending.callback(syncer.kill)

        def start(learner: int) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "benchmarks.decoupled", *sys.argv[1:], f"--learner={learner}"]
            command += [f"--folder={folder}", f"--address=127.0.0.1:{port}"]
            process = subprocess.Popen([*command, "--slow"] if kind == RUNS[2] and learner == 0 else command)
            ending.callback(process.kill)
            return process

        learners = [start(learner) for learner in range(options.learners)]
        files = [folder / f"{learner}.steps" for learner in range(options.learners)]
        while not all(file.exists() and file.stat().st_size for file in files):  # all have begun
            assert all(process.poll() is None for process in learners), "a learner has ended"
            time.sleep(0.1)
        kills, begins = 0, time.time()
        until, next_kill = begins + options.seconds, begins + options.kill_every
        (folder / "new").write_text(str(until))
        (folder / "new").rename(folder / "until")  # whole at once
        while time.time() < until:
            if kind == RUNS[1] and time.time() >= next_kill:
                learners[0].send_signal(signal.SIGKILL)
                learners[0].wait()
                learners[0], kills, next_kill = start(0), kills + 1, next_kill + options.kill_every
            time.sleep(0.05)
        for process in learners:
            process.wait()
        syncer.terminate()
        syncer.wait()
        steps = []
        for learner in range(options.learners):
            lines = (folder / f"{learner}.steps").read_text(encoding="utf-8").splitlines()
            steps.append([float(line) for line in lines if begins <= float(line) <= until])
        torch.manual_seed(0)
        task = find_task(options.task)
        task.load(None)
        model = task.model()
        buffers = torch.load(
            folder / "1.buffers", weights_only=True
        )  # such as BatchNorm's, which stay with each learner
        model.load_state_dict({**model.state_dict(), **buffers, **read_parameters(folder / "syncer.pt")})
        stats = torch.load(folder / "syncer.pt", weights_only=True)["stats"]
    return {
        "run": kind, "kills": kills, "steps": [len(times) for times in steps],
        "longest pause": max(longest_gap(times, begins, until) for times in steps[1:]),
        "longest stop": longest_gap(sorted(time for times in steps[1:] for time in times), begins, until),
        "metric": task.metric, "better": task.better, "scores": task.evaluate(model), "syncer": stats,
    }  # fmt: skip


def longest_gap(times: Sequence[float], begins: float, until: float) -> float:
    """The longest time without one of these, which ascend.

    >>> longest_gap([1.0, 1.5, 4.0], 0.0, 5.0), longest_gap([], 0.0, 5.0)
    (2.5, 5.0)
    """
    return max(b - a for a, b in zip([begins, *times], [*times, until], strict=True))


def judge(rows: Sequence[dict[str, Any]]) -> None:
    """Adds to each run what the first says about it, and whether it meets the goals: ``{"met": True, ...}``."""
    first = rows[0]
    sign = 1 if first["better"] == "lower" else -1
    for row in rows:
        goodput = sum(row["steps"][1:]) / max(1, sum(first["steps"][1:]))
        worse = sign * (row["scores"][row["metric"]] / first["scores"][row["metric"]] - 1)
        stops = row["longest stop"] > STOP * first["longest pause"]
        row["goodput of the others"], row["worse"], row["stops"] = goodput, worse, stops
        row["met"] = goodput >= GOODPUT and worse <= LOSS and not stops


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The judged runs, as Markdown."""
    header = ["run", "goodput of the others", "longest stop, s", "longest pause, s", "kills", "merges", "worse", "met"]
    header.insert(6, rows[0]["metric"].replace("_", " "))
    lines = [
        [
            row["run"], f"{row['goodput of the others']:.1%}", f"{row['longest stop']:.2f}", f"{row['longest pause']:.2f}",
            str(row["kills"]), str(row["syncer"]["merges"]), f"{row['scores'][row['metric']]:.4f}", f"{row['worse']:+.1%}",
            "yes" if row["met"] else "no",
        ]
        for row in rows
    ]  # fmt: skip
    return markdown(header, lines)


def main() -> None:
    """The three runs, and what they say about each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="gpt_small")
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--quorum", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each run, from when all have begun")
    parser.add_argument("--kill-every", type=float, default=20.0)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--fragments", type=int, default=2)
    parser.add_argument("--overlap", type=int, default=4)
    parser.add_argument("--keep-every", type=int, default=20)
    parser.add_argument("--method", default="qsgd:bits=8")
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.5, help="few merges need less of it than many")
    parser.add_argument("--json", type=Path, help="a file")
    for name, kind in (("learner", int), ("folder", str), ("address", str)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--slow", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.learner is not None:
        learn(options)
        return
    rows = [measure(options, kind) for kind in RUNS]
    judge(rows)
    sys.stdout.write(table(rows) + "\n")
    if options.json:
        settings = {key: value for key, value in vars(options).items() if isinstance(value, str | int | float)}
        options.json.write_text(json.dumps({"settings": settings, "runs": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
