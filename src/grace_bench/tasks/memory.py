"""Least memory that a worker needs, found without allocating it: on torch's fake tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from grace_bench.tasks.contract import Task

_PROCESS = 200 << 20  # a process that has imported torch, measured
_COPIES = 3  # of the parameters' size: they themselves, the gradients, DistributedDataParallel's buckets


def least_bytes(task: Task, batch: Any, slots: int) -> int:
    """The memory that one worker needs: the process, the model, its gradients in their buckets, ``slots`` tensors of the
    optimizer, and what one forward pass saves for the backward pass. Neither the data nor a method's state are counted.

    Args:
        task: whose model and loss they are.
        batch: of the shape of the task's batches.
        slots: tensors of the parameters' size that the optimizer keeps.
    """
    with torch.device("meta"):
        model = task.model()
    size = sum(p.nbytes for p in model.parameters())
    return _PROCESS + (_COPIES + slots) * size + saved_bytes(task, model, batch)


def saved_bytes(task: Task, model: torch.nn.Module, batch: Any) -> int:
    """Bytes that the forward pass saves for the backward pass, without the parameters. ``model`` is on the meta device.

    A fake tensor has a shape and a device, here the CPU, but no memory; unlike meta tensors, which have no device, it
    takes the kernels of the real one, and so saves what they save.
    """
    fake = FakeTensorMode()
    with fake:
        for module in model.modules():
            for name, p in list(module.named_parameters(recurse=False)):
                setattr(module, name, torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype)))
            for name, b in list(module.named_buffers(recurse=False)):
                setattr(module, name, torch.empty(b.shape, dtype=b.dtype))
    parameters = {_storage(p) for p in model.parameters()}
    # Tensors without memory have no address. Their storages are kept alive, so that no two share an identity.
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(x: Tensor) -> Tensor:
        if (key := _storage(x)) not in parameters:
            saved[key] = x.untyped_storage()
        return x

    with fake, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        task.loss(model, tuple(fake.from_tensor(x) if isinstance(x, Tensor) else x for x in batch))
    return sum(storage.nbytes() for storage in saved.values())


def _storage(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)
