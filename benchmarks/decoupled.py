"""Decoupled learners as processes, one of which is killed again and again: ``python -m benchmarks.decoupled``.

Three runs of the same length: undisturbed; one learner is killed with SIGKILL every so many seconds, and started again at
once; one learner is at half speed. Goodput of the others is their steps, as a share of what the same learners made in the
undisturbed run; beside it the longest time between two of their steps, which a global stop would show, and the loss of the
merged parameters. A learner that is dead leaves its processor to the others, so that more than 100 % can come out.

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
from pathlib import Path
from typing import Any

import torch

import grace
from grace.decoupled import read_parameters
from grace_bench.tasks import find_task
from grace_bench.workers.ports import free_port

RUNS = ("undisturbed", "killed", "half speed")
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
        counts, longest = [], 0.0
        for learner in range(options.learners):
            lines = (folder / f"{learner}.steps").read_text(encoding="utf-8").splitlines()
            times = [float(line) for line in lines if begins <= float(line) <= until]
            counts.append(len(times))
            if learner:
                longest = max([longest, *(b - a for a, b in zip([begins, *times], [*times, until], strict=True))])
        torch.manual_seed(0)
        task = find_task(options.task)
        task.load(None)
        model = task.model()
        buffers = torch.load(
            folder / "1.buffers", weights_only=True
        )  # such as BatchNorm's, which stay with each learner
        model.load_state_dict({**model.state_dict(), **buffers, **read_parameters(folder / "syncer.pt")})
        stats = torch.load(folder / "syncer.pt", weights_only=True)["stats"]
    scores = task.evaluate(model)
    return {"run": kind, "steps": counts, "kills": kills, "longest": longest, "scores": scores, "syncer": stats}


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
    others = [sum(row["steps"][1:]) for row in rows]
    for row, count in zip(rows, others, strict=True):
        row["goodput of the others"] = count / max(1, others[0])
        scores = ", ".join(f"{key} {value:.4f}" for key, value in row["scores"].items())
        sys.stdout.write(
            f"{row['run']:<12} goodput of the others {row['goodput of the others']:.1%}, longest pause "
            f"{row['longest']:.2f} s, kills {row['kills']}, merges {row['syncer']['merges']}; {scores}\n"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
