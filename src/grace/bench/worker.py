"""One worker of a training run: ``python -m grace.bench.worker SCRATCH``, under torchrun."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.bench.config import RunConfig
from grace.bench.optimizers import adjustment_for, set_momentum
from grace.bench.results import environment, quartiles, result_of
from grace.bench.scratch import Scratch, write_atomically
from grace.bench.tasks import Task, find_task
from grace.collectives import AllGather
from grace.errors import AgreementError, ConfigurationError
from grace.transports.torch_distributed import TorchDistributed, init_process_group

_REPORT_SECONDS = 0.1
_WATCH_SECONDS = 0.5


def main() -> None:
    """Trains; an error goes to the parent through the scratch folder."""
    scratch = Scratch(Path(sys.argv[1]))
    asked = json.loads(scratch.config.read_text())
    rank = int(os.environ["RANK"])
    scratch.register(rank)
    _watch(int(asked["parent"]), scratch.folder)
    try:
        Training(RunConfig(**asked["config"]), rank, scratch).run(asked["command"])
    except Exception as error:
        scratch.fail(rank, error)
        sys.stderr.flush()
        os._exit(1)  # threads of a group that has failed may keep the interpreter from exiting


def _watch(parent: int, folder: Path) -> None:
    """Ends this process when the parent is gone without having said so: nobody is waiting for the result."""

    def look() -> None:
        while True:
            time.sleep(_WATCH_SECONDS)
            try:
                os.kill(parent, 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)  # the parent could not
                os._exit(1)

    threading.Thread(target=look, name="parent-watch", daemon=True).start()


class Training:
    """A run, seen from one worker."""

    def __init__(self, config: RunConfig, rank: int, scratch: Scratch):
        self.config, self.rank, self.scratch = config, rank, scratch
        torch.set_num_threads(config.threads)
        self.task = find_task(config.task)
        self.task.load(None if config.data is None else Path(config.data))
        self.epoch_steps = self.task.steps_per_epoch(config.workers)
        if self.epoch_steps < 1:
            raise ConfigurationError(
                f"task {config.task!r} has too few samples for {config.workers} workers of {self.task.batch} each"
            )
        epochs = self.task.epochs if config.epochs is None else config.epochs
        self.steps = config.steps or max(1, round(epochs * self.epoch_steps))
        self.task.steps = self.steps

    def run(self, command: list[str]) -> None:
        """Trains, evaluates, checks, and writes the result on rank 0."""
        config, task = self.config, self.task
        init_process_group(timeout=datetime.timedelta(seconds=config.timeout))
        torch.manual_seed(config.seed)
        model = task.model()
        torch.manual_seed(config.seed * MOST + self.rank + 1)  # dropout differs between workers
        _decay(task, model)
        ddp = DistributedDataParallel(model)
        handle = grace.attach(ddp, config.method, granularity=config.granularity, seed=config.seed)
        optimizer, changes = self._optimizer(model)
        curve, seconds = self._train(ddp, optimizer, changes, handle)
        self._check_replicas(model)
        stats = handle.stats
        if self.rank == 0:
            result = result_of(
                config, task, model, stats, curve=curve, step_seconds=quartiles(seconds), optimizer=changes,
                steps=self.steps, epoch_steps=self.epoch_steps, command=command, machine=environment(config.threads),
            )  # fmt: skip
            write_atomically(self.scratch.result, json.dumps(result, indent=1, allow_nan=False) + "\n")
        dist.barrier()
        handle.detach()
        dist.destroy_process_group()

    def _optimizer(self, model: nn.Module) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
        """The task's optimizer, and where it departs from the task's own for the method's sake."""
        optimizer = self.task.optimizer(model)
        peak = max(self.task.lr(step) for step in range(self.steps))
        adjustment = adjustment_for(grace.method(self.config.method))
        scale, momentum, why = 1.0, None, None
        if self.config.lr is not None:
            scale, why = self.config.lr / peak, "lr as asked for"
        elif adjustment is not None:
            scale, why = adjustment.lr_scale, str(adjustment)
        if adjustment is not None and adjustment.momentum is not None and set_momentum(optimizer, adjustment.momentum):
            momentum = adjustment.momentum
            if self.config.lr is not None:
                why = f"lr as asked for; momentum {momentum:g}: {adjustment.why}"
        if momentum is None:
            momentum = optimizer.param_groups[0].get("momentum")
        name = type(optimizer).__name__
        return optimizer, {"name": name, "peak_lr": peak * scale, "lr_scale": scale, "momentum": momentum, "why": why}

    def _train(
        self,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        changes: dict[str, Any],
        handle: grace.Handle,
    ) -> tuple[list[dict[str, Any]], list[float]]:
        """The curve of evaluations (rank 0 only), and the seconds of each step."""
        config, task, parameters = self.config, self.task, list(ddp.parameters())
        batches = task.batches(self.rank, config.workers, config.seed)
        marks = {max(1, round(self.steps * k / config.evaluations)) for k in range(1, config.evaluations + 1)}
        curve, seconds, total, last_report = [], [], 0.0, 0.0
        if self.rank == 0:
            curve.append(self._evaluated(ddp, 0, 0.0, 0, None))
        ddp.module.train()
        for step in range(self.steps):
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = task.loss(ddp, next(batches))
            torch.autograd.backward(loss)
            if task.clip:
                nn.utils.clip_grad_norm_(parameters, task.clip)
            for group in optimizer.param_groups:
                group["lr"] = task.lr(step) * changes["lr_scale"]
            optimizer.step()
            now = time.perf_counter()
            seconds.append(now - start)
            total += seconds[-1]
            if self.rank == 0:
                if step + 1 in marks:
                    curve.append(self._evaluated(ddp, step + 1, total, handle.stats.traffic.sent, loss.item()))
                if now - last_report > _REPORT_SECONDS or step + 1 == self.steps:
                    self.scratch.report(step + 1, self.steps)
                    last_report = now
            if step + 1 in marks:
                dist.barrier()  # so that waiting for rank 0's evaluation is nobody's step time
        return curve, seconds

    def _evaluated(
        self, ddp: DistributedDataParallel, step: int, seconds: float, sent: int, loss: float | None
    ) -> dict[str, Any]:
        metrics = {name: _finite(value) for name, value in self.task.evaluate(ddp.module).items()}
        train = None if loss is None else _finite(loss)
        epoch = step / self.epoch_steps
        return {"epoch": epoch, "step": step, "seconds": seconds, "sent_bytes": sent, "train_loss": train, **metrics}

    def _check_replicas(self, model: nn.Module) -> None:
        """All workers must hold the same parameters, bit for bit.

        Raises:
            AgreementError: they do not.
        """
        digest = hashlib.sha256()
        for p in model.parameters():
            digest.update(p.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        mine = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        all_of_them = TorchDistributed().run(AllGather(mine))  # [W, 32]
        differ = [rank for rank, other in enumerate(all_of_them) if not torch.equal(other, all_of_them[0])]
        if differ:
            raise AgreementError(f"after {self.steps} steps the parameters of ranks {differ} are not those of rank 0")


MOST = 1 << 16  # more workers than there can be, so that no two (seed, rank) coincide


def _decay(task: Task, model: nn.Module) -> None:
    """Adds the L2 term to the local gradients, before DistributedDataParallel sees them."""
    if not task.local_decay:
        return
    for p in task.decayed(model):
        p.register_hook(lambda gradient, p=p: gradient.add(p.detach(), alpha=task.local_decay))  # type: ignore[no-untyped-call]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
