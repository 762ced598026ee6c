"""Quality of outer loops beside synchronous training, on equal samples: ``python -m benchmarks.outer``.

All replicas take turns in this process, without a network: the loops' schedules, outer optimizers and codecs are Grace's own,
and bytes are counted as the collectives move them. Each run has a whole schedule of the learning rate. ``sync`` averages the
gradients of each step in fp32. A loop's text may end in ``@x``, a factor on the inner learning rate: ``diloco:every=8@2``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.contenders import markdown
from grace.adapters.outer.fragments import Fragments
from grace.adapters.outer.presets import OuterSettings, read_outer
from grace.adapters.outer.state import OuterState
from grace.adapters.trained import zero_nonfinite_state
from grace.errors import InputError
from grace.run.simulator import Simulator
from grace_bench.runs.training import add_decay
from grace_bench.tasks import Task, find_task

SYNC = "sync"
_NONE = OuterSettings(every=1)


class Replica:
    """A worker's model, its inner optimizer and its data."""

    def __init__(self, task: Task, rank: int, seed: int, factor: float):
        torch.manual_seed(seed)
        self.task, self.factor, self.model = task, factor, task.model()
        add_decay(task, self.model)
        self.optimizer = task.optimizer(self.model)
        if isinstance(self.optimizer, torch.optim.AdamW):
            for group in self.optimizer.param_groups:
                group.update(fused=True, foreach=False)  # a third less time for small models
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.batches = task.batches(rank, task.workers, seed)
        self.model.train()

    def backward(self) -> None:
        """Computes the gradients of this worker's next batch."""
        self.optimizer.zero_grad()
        torch.autograd.backward(self.task.loss(self.model, next(self.batches)))

    def apply(self, step: int) -> None:
        """The inner optimizer's part of a step, as the task wants it."""
        if self.task.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.lr(step) * self.factor
        self.optimizer.step()


class Loop:
    """An outer loop over all replicas; of ``sync``, the average of gradients in each step."""

    def __init__(self, task: Task, text: str, seed: int):
        self.text, _, factor = text.partition("@")
        self.task = task
        self.replicas = [Replica(task, rank, seed, float(factor or 1)) for rank in range(task.workers)]
        first = self.replicas[0].parameters
        self.settings, method = (_NONE, "none") if self.text == SYNC else read_outer(self.text)
        if not isinstance(method, str):
            raise InputError(f"{text}: legal: a loop whose method is a text")
        self._fragments = Fragments({name: p.numel() for name, p in first.items()}, self.settings)
        self._state = OuterState(first, self.settings)
        self._state.begin(first)
        self._exchange = Simulator(method, task.workers, seed=seed)
        self._means: dict[str, Tensor] = {}
        self._warm = task.steps if self.text == SYNC else self.settings.warmup_steps
        self._warmed, self._number = 0, sum(p.numel() for p in first.values())

    @property
    def sent(self) -> int:
        """Bytes that a worker has sent: in a warm-up those of an all-reduce in fp32."""
        return self._exchange.traffic[0].sent + round(self._warmed * self.all_reduce)

    @property
    def all_reduce(self) -> float:
        """Bytes that a worker sends to all-reduce the model in fp32."""
        return 8 * self._number * (self.task.workers - 1) / self.task.workers

    def step(self, step: int) -> None:
        """Takes a step on each replica, and exchanges what is due."""
        for replica in self.replicas:
            replica.backward()
        if step < self._warm:
            self._average_gradients()
        for replica in self.replicas:
            replica.apply(step)
        if step < self._warm:
            self._warmed += 1
            self._state.begin(self.replicas[0].parameters)
        else:
            self._follow_schedule((step - self._warm) % self.settings.every + 1)

    @torch.no_grad()
    def _average_gradients(self) -> None:
        for name in self.replicas[0].parameters:
            gradients = [replica.parameters[name].grad for replica in self.replicas]
            if any(gradient is None for gradient in gradients):
                raise InputError(f"{name!r} has no gradient")
            mean = torch.stack(gradients).mean(0)  # type: ignore[arg-type]
            for gradient in gradients:
                gradient.copy_(mean)  # type: ignore[union-attr]

    @torch.no_grad()
    def _follow_schedule(self, taken: int) -> None:
        fragments = self._fragments
        if (starting := fragments.starting(taken)) is not None:
            deltas = {
                name: [self._delta(replica, name) for replica in self.replicas] for name in fragments.names[starting]
            }
            self._means = self._exchange.step(deltas, lr=1.0)
        if fragments.ending(taken) is None:
            return
        dropped = [name for name, mean in self._means.items() if not self._state.step(name, mean)]
        for replica in self.replicas:
            for name in replica.parameters if dropped else self._means:
                self._state.write(name, replica.parameters[name], 0.0 if dropped else self.settings.alpha)
            for p in replica.parameters.values() if dropped else ():
                zero_nonfinite_state(replica.optimizer, p)

    def _delta(self, replica: Replica, name: str) -> Tensor:
        p = replica.parameters[name].detach()
        return self._state.delta(name, p, torch.empty_like(self._state.theta[name]))

    def measure(self) -> Mapping[str, float]:
        """Scores of theta, with rank 0's buffers."""
        replica = self.replicas[0]
        own = {name: p.detach().clone() for name, p in replica.parameters.items()}
        with torch.no_grad():
            for name, p in replica.parameters.items():
                self._state.write(name, p)
        scores = self.task.evaluate(replica.model)
        with torch.no_grad():
            for name, p in replica.parameters.items():
                p.copy_(own[name])
        replica.model.train()
        return scores


def run(name: str, text: str, steps: int, workers: int, seed: int, marks: int = 4) -> dict[str, Any]:
    """The row of a run: a curve of the headline at so many marks, and what was sent.

    Args:
        name: of the task.
        text: of a loop, or ``sync``.
        steps: of the run.
        workers: that train.
        seed: of models, data and codecs.
        marks: evaluations.
    """
    task = find_task(name)
    task.workers = workers
    task.load(None)
    task.steps = steps
    began = time.process_time()
    loop = Loop(task, text, seed)
    at = {max(1, round(steps * k / marks)) for k in range(1, marks + 1)}
    curve = []
    for step in range(steps):
        loop.step(step)
        if step + 1 in at:
            curve.append((step + 1, loop.measure()[task.metric]))
    return {
        "task": name, "method": text, "steps": steps, "workers": workers, "seed": seed, "metric": task.metric,
        "better": task.better, "final": curve[-1][1], "curve": curve, "sent per step": loop.sent / steps,
        "fewer bytes": loop.all_reduce * steps / max(1, loop.sent),
        "cpu seconds": round(time.process_time() - began, 1),
    }  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The runs as Markdown: the median over seeds, and how far it is behind ``sync`` of as many steps."""
    finals: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        finals.setdefault((row["task"], row["steps"], row["method"]), []).append(row["final"])
    lines, like = [], {(row["task"], row["steps"], row["method"]): row for row in rows}
    for key in sorted(finals, key=lambda key: (key[:2], key[2] != SYNC, statistics.median(finals[key]))):
        task, steps, method = key
        final, rival = statistics.median(finals[key]), finals.get((task, steps, SYNC))
        sign = 1 if like[key]["better"] == "lower" else -1
        behind = (
            "" if rival is None or method == SYNC else f"{sign * 100 * (final / statistics.median(rival) - 1):.1f} %"
        )
        fewer = f"{like[key]['fewer bytes']:.3g}"
        lines.append([task, f"{steps:,}", f"`{method}`", f"{final:.3f}", behind, fewer, str(len(finals[key]))])
    header = ["task", "steps", "method", rows[0]["metric"].replace("_", " "), "behind", "fewer bytes", "seeds"]
    return markdown(header, lines) + "\n"


def split(text: str) -> list[str]:
    """Loops with commas between, each of which may have knobs: what has no ``:`` and no name of its own is a knob.

    >>> split("sync,diloco:every=8,lr=1,method=(qsgd:bits=4),sparseloco@2")
    ['sync', 'diloco:every=8,lr=1,method=(qsgd:bits=4)', 'sparseloco@2']
    """
    parts: list[str] = []
    for word in text.split(","):
        if parts and "=" in word.partition(":")[0]:
            parts[-1] += f",{word}"
        else:
            parts.append(word)
    return parts


def main() -> None:
    """Runs all that the arguments combine, adds each to the file as it ends, and writes the table of the whole file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="gpt_tiny")
    parser.add_argument("--methods", default="sync,diloco:every=8,lr=1,momentum=0.5", help="with commas between")
    parser.add_argument("--steps", default="1000", help="with commas between")
    parser.add_argument("--seeds", default="0", help="with commas between")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--json", type=Path, help="a file of one line for each run, which grows; what is in it is not run"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    if options.json and options.json.exists():
        rows = [json.loads(line) for line in options.json.read_text(encoding="utf-8").splitlines()]
    there = {(row["task"], row["steps"], row["workers"], row["seed"], row["method"]) for row in rows}
    for steps in map(int, options.steps.split(",")):
        for seed in map(int, options.seeds.split(",")):
            for method in split(options.methods):
                if (options.task, steps, options.workers, seed, method) in there:
                    continue
                row = run(options.task, method, steps, options.workers, seed)
                rows.append(row)
                sys.stderr.write(f"{method}: {row['final']:.4f} after {steps} steps, {row['cpu seconds']} s\n")
                if options.json:
                    with options.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
