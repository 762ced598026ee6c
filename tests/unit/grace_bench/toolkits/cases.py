"""The tasks on one toolkit beside torch: ``python -m tests.unit.grace_bench.toolkits.cases TOOLKIT TASK ...``
prints what it saw, as JSON. A process of its own: a toolkit would leave threads, warnings and settings behind.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import torch

from grace_bench.tasks import TASKS
from grace_bench.toolkits.replica import Recipe, Replica, arrays_of, from_torch
from grace_bench.toolkits.training import make_replica

STEPS = 2


def prepare(toolkit: str, name: str) -> tuple[Recipe, Replica]:
    task = TASKS[name]()
    task.workers, task.batch = 1, 4
    task.load_synthetic()
    task.steps = STEPS
    torch.manual_seed(0)
    model = task.model()
    recipe = Recipe(task, model, task.optimizer(model), [task.lr(step) for step in range(STEPS)], 1, 1)
    return recipe, make_replica(toolkit, name, recipe)


def train(recipe: Recipe, replica: Replica) -> dict[str, Any]:
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


def count(toolkit: str, recipe: Recipe, replica: Replica) -> list[int]:
    """Parameters and vectors of a model: Keras's variables, or the shapes of JAX's gradient."""
    found: Any = replica
    if toolkit == "tensorflow":
        sizes = [v.shape.num_elements() for v in found.variables]
    else:
        import jax

        params = {name: from_torch(name, p) for name, p in recipe.model.named_parameters()}
        arrays, _ = arrays_of(next(recipe.task.batches(0, 1, 0)))
        loss = jax.grad(found.network.loss, has_aux=True)
        gradient, _ = jax.eval_shape(loss, params, found.network.begin(4), arrays, jax.random.key(0))
        sizes = [g.size for g in gradient.values()]
    return [sum(sizes), len(sizes)]


if __name__ == "__main__":
    toolkit, *names = sys.argv[1:]
    found: dict[str, dict[str, Any]] = {"trained": {}, "counted": {}}
    for name in names:
        both = prepare(toolkit, name)
        found["counted"][name] = count(toolkit, *both)
        if name.endswith("_small"):
            found["trained"][name] = train(*both)
    sys.stdout.write(json.dumps(found))
