"""The one line for a training script: ``grace.attach(ddp_model, "topk:ratio=0.01")``."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from grace.adapters.torch_ddp import Handle
from grace.errors import ConfigurationError
from grace.method import Method
from grace.policy import Policy
from grace.run.groups import Granularity
from grace.run.worker import NonFinite
from grace.transports.base import Transport


def attach(
    model: DistributedDataParallel,
    method: Policy | Method[Any] | str,
    *,
    granularity: Granularity = "parameter",
    seed: int = 0,
    nonfinite: NonFinite = "propagate",
    check: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    steps_per_epoch: int | None = None,
    scaler: torch.amp.GradScaler | None = None,
    transport: Transport | None = None,
) -> Handle:
    """Exchanges this model's gradients with a compression method from now on. All ranks call it alike.

    Args:
        model: a ``DistributedDataParallel`` model without a communication hook of its own.
        method: a method, the string that makes it, or a :class:`grace.Policy`. A bare method leaves tensors of at most
            one dimension and tensors under 1,024 elements uncompressed, fused into one all-reduce.
        granularity: what is compressed as one tensor: each "parameter" (layer-wise), each "bucket" (of
            ``bucket_cap_mb``), or the whole "model".
        seed: of all random streams.
        nonfinite: what becomes of a tensor in which some rank has an inf or NaN: all ranks see a NaN mean
            ("propagate"), 0 ("skip"), or NonFiniteError ("error").
        check: compare all collectives between ranks before they start; slow, for debugging.
        optimizer: where memories that follow the learning rate (``follow_lr=true``) read it: that of its first group of
            parameters. Only the ratio between steps counts, so one group speaks for all that follow one schedule.
        steps_per_epoch: synchronised steps in an epoch, for schedules that count epochs.
        scaler: the ``torch.amp.GradScaler`` that multiplies the loss. Memories are then kept in units without its scale;
            needed with every method that has a memory, since what is owed would change its worth with the scale.
        transport: between the ranks of the model's process group; by default a process group of its own beside that.

    Returns:
        A handle: ``stats``, ``state_dict()``, ``load_state_dict(s)``, ``switch(method)``, ``detach()``.

    Raises:
        ConfigurationError: not such a model, or a method that cannot work.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ in method, policy or model, on every rank, within a minute.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ConfigurationError(
            f"attach takes a DistributedDataParallel model, got {type(model).__name__}; "
            "wrap it: grace.attach(DistributedDataParallel(model), ...)"
        )
    if not isinstance(optimizer, torch.optim.Optimizer | None):
        raise ConfigurationError(f"attach: optimizer={optimizer!r}; legal: a torch.optim.Optimizer, or none")
    return Handle(
        model, method, granularity=granularity, seed=seed, nonfinite=nonfinite, check=check, optimizer=optimizer,
        steps_per_epoch=steps_per_epoch, scaler=scaler, transport=transport,
    )  # fmt: skip
