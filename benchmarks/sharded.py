"""A GPT under ``fully_shard``, with and without Grace: ``python -m benchmarks.sharded``.

With ``--link 1gbit`` the time of a step, over links that are made for it, beside FSDP2 alone and FSDP2 that reduces in bf16:
all take turns in one run, on one model. With ``--steps`` the quality after so many steps, beside FSDP2 alone, by the task's
optimizer or with other settings (``--rate``, ``--betas``, ``--clip``, ``--decay``, ``--floor``). ``--layers``, ``--width`` and
``--window`` make another GPT of the task's. Run it on a machine with nothing else to do. The table is Markdown; ``--json``
prints the numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import grace
from benchmarks import contenders
from grace.adapters.sharded import ShardedHandle
from grace_bench.tasks import Task, find_task
from grace_bench.tasks.schedules import warm_cosine

PLAIN, BF16 = "FSDP2 alone", "FSDP2, reduced in bf16"  # without Grace
METHODS = (
    "none", "bf16", "fp8", "qsgd:bits=4", "natural", "efsignsgd", "topk:ratio=0.01", "randomk:ratio=0.01",
    "bf16 weights=int8", "qsgd:bits=4 weights=int8", "topk:ratio=0.01 weights=fp8",
)  # fmt: skip
BETWEEN = (
    "powersgd:rank=4",
    "topk:ratio=0.01 shard=bf16",
    "topk:ratio=0.01 shard=bf16 weights=int8",
)  # with machines only
WARM, STEPS, ROUNDS = 3, 4, 4  # steps before the clock, steps of a turn, turns
WORLD = 4


class Contender:
    """A model that trains in one of the ways."""

    def __init__(self, task: Task, way: str, machines: int, betas: tuple[float, float] | None = None, seed: int = 0):
        self.task, self.way = task, way
        torch.manual_seed(seed)
        self.model = task.model()
        shape, names = (
            ((machines, WORLD // machines), ("machines", "machine")) if machines > 1 else ((WORLD,), ("machine",))
        )
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16 if way == BF16 else None)
        for block in find_blocks(self.model):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        self.handle = None if way in (PLAIN, BF16) else attach(self.model, way)
        self.optimizer = task.optimizer(self.model)
        if betas is not None:
            for group in self.optimizer.param_groups:
                group["betas"] = betas
        self.batches = task.batches(dist.get_rank(), WORLD, seed)
        self.seconds: list[float] = []
        self.done = 0

    def train(self, steps: int, *, timed: bool) -> None:
        """Some steps, each after a barrier where they are timed."""
        for _ in range(steps):
            batch = next(self.batches)
            for group in self.optimizer.param_groups:
                group["lr"] = self.task.lr(self.done)
            if timed:
                dist.barrier()
            start = time.perf_counter()
            self.optimizer.zero_grad()
            torch.autograd.backward(self.task.loss(self.model, batch))
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip or float("inf"))
            self.optimizer.step()
            if timed:
                self.seconds.append(time.perf_counter() - start)
            self.done += 1


def attach(model: nn.Module, way: str) -> ShardedHandle:
    """A method, and behind it ``weights=`` and ``shard=``: ``"topk:ratio=0.01 weights=int8"``."""
    method, *others = way.split()
    axes: dict[str, Any] = dict(other.split("=", 1) for other in others)
    handle = grace.attach(model, method, **axes)
    assert isinstance(handle, ShardedHandle)
    return handle


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a transformer: the members of its longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    return list(max(lists, key=len)) if lists else []


def change(task: Any, options: argparse.Namespace) -> Task:
    """The task with other settings."""
    task.workers, task.steps = WORLD, options.steps or 100
    given = {"context": options.window, "windows": options.windows, "rate": options.rate, "clip": options.clip}
    for name, value in {**given, "decay": options.decay}.items():
        if value is not None:
            setattr(task, name, value)
    sizes = {"layers": options.layers, "width": options.width}
    task.options = {**task.options, **{name: value for name, value in sizes.items() if value is not None}}
    task.load(None)
    task.batch = options.batch or task.batch
    if options.floor is not None:
        task.lr = lambda step: warm_cosine(step, task.steps, task.rate, max(20, task.steps // 20), options.floor)
    changed: Task = task
    return changed


def work(options: argparse.Namespace) -> None:
    """The work of each worker."""
    contenders.join()
    task = change(find_task(options.task), options)
    ways = options.methods.split(";") if options.methods else [PLAIN, BF16, *METHODS]
    if not options.methods and options.machines > 1:
        ways.extend(BETWEEN)
    rows: list[dict[str, Any]] = []
    if options.steps:
        for way in ways:
            contender = Contender(task, way, options.machines, options.betas, options.seed)
            contender.train(options.steps, timed=False)
            rows.append({"way": way, **task.evaluate(contender.model)})
            contenders.tell(f"{rows[-1]}")
    else:
        models = [Contender(task, way, options.machines) for way in ways]
        for contender in models:
            contender.train(WARM, timed=True)
            contender.seconds.clear()
        for _ in range(ROUNDS):
            for contender in models:
                contender.train(STEPS, timed=True)
        for contender in models:
            sent = (
                None
                if contender.handle is None
                else sum(axis.bytes_per_step for axis in contender.handle.axes.values())
            )
            quartiles = [1000 * x for x in statistics.quantiles(contender.seconds, n=4)]
            rows.append({"way": contender.way, "step_ms": quartiles, "sent_bytes": sent})
    if dist.get_rank() == 0:
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        Path(options.out).write_text(json.dumps(rows))
    contenders.end()


def read_betas(text: str) -> tuple[float, float]:
    """``"0,0.999"`` -> two numbers."""
    first, second = text.split(",")
    return float(first), float(second)


def show(rows: list[dict[str, Any]]) -> str:
    """The table."""
    if "step_ms" not in rows[0]:
        metric = [key for key in rows[0] if key != "way"]
        lines = [["method", *metric], ["---"] * (1 + len(metric))]
        lines += [[row["way"], *(f"{row[key]:.4g}" for key in metric)] for row in rows]
    else:
        plain, bf16 = rows[0]["step_ms"][1], rows[1]["step_ms"][1]
        lines = [["", "step, ms (quartiles)", "x FSDP2", "x bf16", "bytes that Grace sent"], ["---"] * 5]
        for row in rows:
            low, median, high = row["step_ms"]
            sent = "" if row["sent_bytes"] is None else f"{row['sent_bytes']:,.0f}"
            lines.append(
                [
                    row["way"],
                    f"{median:.0f} ({low:.0f} to {high:.0f})",
                    f"{plain / median:.2f}",
                    f"{bf16 / median:.2f}",
                    sent,
                ]
            )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Starts the workers, and shows what they found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded", description=__doc__)
    parser.add_argument("--task", default="gpt_small")
    parser.add_argument("--link", default="none", help="1gbit, for times")
    parser.add_argument("--machines", type=int, default=1, help="2: HSDP on two machines, which share a link each")
    parser.add_argument("--batch", type=int, help="samples of a worker and step, instead of the task's")
    parser.add_argument("--steps", type=int, help="quality after so many steps, instead of times")
    parser.add_argument("--rate", type=float, help="learning rate, instead of the task's")
    parser.add_argument("--betas", type=read_betas, help="of Adam, instead of the task's: 0,0.999")
    parser.add_argument("--clip", type=float, help="largest norm of the mean, instead of the task's; 0: none")
    parser.add_argument("--decay", type=float, help="of weights, instead of the task's")
    parser.add_argument(
        "--floor", type=float, help="to which part of the rate it falls, on a cosine after a 20th of the steps"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the batches")
    parser.add_argument("--layers", type=int, help="blocks of the GPT, instead of the task's")
    parser.add_argument("--width", type=int, help="of the GPT, a multiple of its 4 heads, instead of the task's")
    parser.add_argument("--window", type=int, help="bytes of a window, instead of the task's")
    parser.add_argument("--windows", type=int, help="how many are evaluated, instead of the task's")
    parser.add_argument("--methods", help="with semicolons between; behind one weights= and shard=")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", default="build/sharded.json", help="what the workers write")
    options = parser.parse_args()
    if "RANK" in os.environ:
        work(options)
    contenders.start(
        "benchmarks.sharded", options.link, WORLD, machines=options.machines if options.machines > 1 else None
    )
    text = Path(options.out).read_text()
    sys.stdout.write((text if options.json else show(json.loads(text))) + "\n")


if __name__ == "__main__":
    main()
