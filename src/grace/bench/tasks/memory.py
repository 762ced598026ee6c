"""How much memory a worker needs at least, found without allocating it: on torch's meta device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.bench.tasks.contract import Task

_PROCESS = 200 << 20  # a process that has imported torch, measured
_COPIES = 3  # of the parameters' size: they themselves, the gradients, DistributedDataParallel's buckets


def least_bytes(task: Task, batch: Any, slots: int) -> int:
    """Of one worker: the process, the model, its gradients in their buckets, ``slots`` tensors of the optimizer, and what
    one pass saves for the way back. Neither the data nor what a method keeps.

    Args:
        task: whose model and loss they are.
        batch: of the shape of the task's batches.
        slots: tensors of the parameters' size that the optimizer keeps.
    """
    with torch.device("meta"):
        model = task.model()
    parameters = {_storage(p): p.nbytes for p in model.parameters()}
    # Tensors without memory have no address, so their storages are kept, that no two have the same identity.
    saved: dict[int, tuple[int, torch.UntypedStorage]] = {}

    def keep(x: Tensor) -> Tensor:
        if (key := _storage(x)) not in parameters:
            storage = x.untyped_storage()
            saved[key] = (storage.nbytes(), storage)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        task.loss(model, _without_memory(batch))
    activations = sum(size for size, _ in saved.values())
    return _PROCESS + (_COPIES + slots) * sum(parameters.values()) + activations


def _storage(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _without_memory(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.to("meta")
    return tuple(map(_without_memory, batch)) if isinstance(batch, tuple) else batch
