"""The tasks on one toolkit beside torch: ``cases.py TOOLKIT TASK ...`` prints what it saw, as JSON behind a mark. A process
of its own: a toolkit would leave threads, warnings and settings behind.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from typing import Any

import torch

from grace_bench.tasks import TASKS
from grace_bench.toolkits.replica import Replica, ReplicaSetup
from grace_bench.toolkits.training import make_replica

STEPS = 2
MARK = "SEEN "


def prepare(toolkit: str, name: str) -> tuple[ReplicaSetup, Replica]:
    task = TASKS[name]()
    task.workers, task.batch = 1, 4
    task.load_synthetic()
    task.steps = STEPS
    torch.manual_seed(0)
    model = task.model()
    recipe = ReplicaSetup(task, model, task.optimizer(model), [task.lr(step) for step in range(STEPS)], 1, 1)
    return recipe, make_replica(toolkit, name, recipe)


def train(recipe: ReplicaSetup, replica: Replica) -> dict[str, Any]:
    """Two steps there and with torch, from the same weights: the losses, and how far weights and statistics differ after."""
    task, model = recipe.task, copy.deepcopy(recipe.model)
    first, here, there = (task.batches(0, 1, 0) for _ in range(3))
    replica.start(next(first))
    optimizer, losses = task.optimizer(model), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = task.loss(model, next(here))
        loss.backward()
        for p in task.decayed(model) if task.local_decay else []:
            p.grad += task.local_decay * p.detach()
        if task.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rates[step]
        optimizer.step()
        losses.append([loss.item(), replica.step(next(there), step)])
    replica.store()
    pairs = [(p, q) for p, q in zip(recipe.model.state_dict().values(), model.state_dict().values(), strict=True)]
    return {"losses": losses, "apart": max((p - q).abs().max().item() for p, q in pairs if p.dim())}


def count(replica: Any) -> list[int]:
    """Parameters and vectors of a model."""
    sizes = [math.prod(v.shape) for v in replica.variables]
    return [sum(sizes), len(sizes)]


if __name__ == "__main__":
    toolkit, *names = sys.argv[1:]
    if toolkit != "tensorflow":
        sys.modules["tensorflow"] = None  # type: ignore[assignment] # Keras would import it
    results: dict[str, dict[str, Any]] = {"trained": {}, "counted": {}}
    for name in names:
        both = prepare(toolkit, name)
        results["counted"][name] = count(both[1])
        if name.endswith("_small"):
            results["trained"][name] = train(*both)
    sys.stdout.write(f"\n{MARK}{json.dumps(results)}\n")
