"""Recognises wrappers that :func:`grace.attach` was given instead of a ``DistributedDataParallel`` model, and says which
line to write instead.

Wrappers are recognized by the names of their classes: none of their packages is imported for this.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_WRAP = "wrap it first: grace.attach(DistributedDataParallel(model), ...)"
_SHARDED = (
    "that is FSDP's first version. Shard with the second, fully_shard(model) of torch.distributed.fsdp, and attach to that; "
    "or, where the model fits into one device, use DistributedDataParallel"
)
# (module begins with, class, what to do); the first that fits one of the object's classes
_KNOWN = (
    ("deepspeed.", "DeepSpeedEngine", "DeepSpeed reduces gradients by itself. Train the module under DistributedDataParallel "
     "and grace.attach(ddp, ...), or with grace.DistributedOptimizer"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", _SHARDED),
    ("lightning.", "_FabricModule", "it is what Fabric's setup() returned; give attach the model inside: "
     "grace.attach(model.module, ...) after fabric.setup(...), with strategy='ddp'"),
    ("lightning.", "LightningModule", "give the Trainer a callback instead: "
     "Trainer(strategy='ddp', callbacks=[grace.lightning.Compression('topk:ratio=0.01')])"),
    ("pytorch_lightning.", "LightningModule", "give the Trainer a callback instead: "
     "Trainer(strategy='ddp', callbacks=[grace.lightning.Compression('topk:ratio=0.01')])"),
    ("lightning.", "Trainer", "give it a callback: Trainer(strategy='ddp', callbacks=[grace.lightning.Compression(...)])"),
    ("transformers.", "Trainer", "give it a callback: Trainer(..., callbacks=[grace.transformers.CompressionCallback(...)])"),
    ("accelerate.", "Accelerator", "attach to what its prepare() returned: model = accelerator.prepare(model); "
     "grace.attach(model, ...)"),
    ("keras.", "Model", "use grace.keras.attach(model, ...) after compile"),
    ("transformers.", "PreTrainedModel", f"{_WRAP}; under transformers.Trainer: "
     "callbacks=[grace.transformers.CompressionCallback(...)]"),
    ("torch.", "Optimizer", "attach takes the model; for an optimizer there is grace.DistributedOptimizer(optimizer, ...)"),
)  # fmt: skip


_EXCHANGING = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"})


def find_exchanging(module: nn.Module) -> str | None:
    """The class because of which this module exchanges or splits its parameters by itself; None: it does neither."""
    return next((name for _, name in _classes(module) if name in _EXCHANGING), None)


def explain_wrapper(given: object) -> str:
    """The object that was given, and the line to write instead; for an error of :func:`grace.attach`."""
    return f"attach takes a DistributedDataParallel model, got {_name(given)}: {_find_remedy(given)}"


def _find_remedy(given: object) -> str:
    inside = getattr(given, "_orig_mod", None)
    if isinstance(inside, nn.Module):  # torch.compile's
        if isinstance(inside, DistributedDataParallel):
            return "torch.compile is around it. Attach to the model inside: grace.attach(model._orig_mod, ...)"
        return "torch.compile is around a bare model; write grace.attach(DistributedDataParallel(torch.compile(model)), ...)"
    for module, name in _classes(given):
        for prefix, known, remedy in _KNOWN:
            if name == known and f"{module}.".startswith(prefix):
                return remedy
    if isinstance(given, nn.parallel.DataParallel):
        return "DataParallel is one process; start one for each device and use DistributedDataParallel"
    if isinstance(given, nn.Module):
        return f"{_WRAP}; or leave it as it is, and use grace.DistributedOptimizer(optimizer, ...)"
    return f"{_WRAP}, where model is a torch.nn.Module"


def _classes(given: object) -> Iterator[tuple[str, str]]:
    for cls in type(given).__mro__:
        yield cls.__module__, cls.__name__


def _name(given: object) -> str:
    cls = type(given)
    if isinstance(given, torch.nn.Module) and cls.__module__.startswith("torch.nn.modules"):
        return f"a bare {cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"
