"""The one line for a training script: ``grace.attach(ddp_model, "topk:ratio=0.01")``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import grace.adapters.torch_ddp  # noqa: F401 - a door
from grace.adapters.axes import Axes
from grace.adapters.doors import find_door
from grace.adapters.handle import Handle
from grace.adapters.hierarchy import between_machines
from grace.adapters.sharded import ShardedDoor
from grace.auto.settings import Auto, wanted
from grace.contract.compressor import Compressor
from grace.contract.method import Method
from grace.errors import ConfigurationError
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.options import Granularity, NonFinite, OnDifference, Options
from grace.transports.base import Transport

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def attach(
    model: nn.Module,
    method: Policy | Method[Any] | Auto | Adaptive | str | None = None,
    *,
    replicate: Policy | Method[Any] | str | None = None,
    shard: Policy | Method[Any] | str | None = None,
    weights: Compressor | Method[Any] | str | None = None,
    mesh: DeviceMesh | None = None,
    granularity: Granularity = Options.granularity,
    seed: int = Options.seed,
    nonfinite: NonFinite = Options.nonfinite,
    check: bool = Options.check,
    check_replicas_every: int = Options.check_replicas_every,
    on_difference: OnDifference = Options.on_difference,
    checksum: bool = Options.checksum,
    local_world_size: int | None = Options.local_world_size,
    optimizer: torch.optim.Optimizer | None = None,
    steps_per_epoch: int | None = Options.steps_per_epoch,
    scaler: torch.amp.GradScaler | None = None,
    ignored_params: Iterable[nn.Parameter] = (),
    transport: str | Transport | None = "auto",
) -> Handle:
    """Exchanges this model's gradients with a compression method from now on. All ranks call it alike.

    Args:
        model: a ``DistributedDataParallel`` model without a communication hook of its own; or, from torch 2.9 on, one under
            ``fully_shard``: then the reduce-scatter of its gradients goes through the method, or on a mesh of two dimensions
            (HSDP) the average between replicas; or a model that an installed package has a door for
            (``grace.adapters.doors``).
        method: a method, the string that makes it, or a :class:`grace.Policy`. A bare method leaves tensors of at most
            one dimension and tensors under 1,024 elements uncompressed, fused into one all-reduce. On a mesh of two
            dimensions it goes between the replicas. ``"auto"`` or a :class:`grace.Auto` chooses one for each bucket of a
            ``DistributedDataParallel`` model, or each group of parameters under ``fully_shard``, by what it measures;
            :meth:`grace.Policy.adaptive` bits of each layer.
        replicate: the same as ``method``, where it says more clearly which axis is meant: between replicas.
        shard: of the reduce-scatter of a sharded model; beside ``replicate`` a method without a memory.
        weights: of the all-gather of a sharded model's weights: "int8", "int4", "fp8", or another compressor that keeps every
            number. Ranks compute with what is gathered, the optimizer with the shard as it is.
        mesh: for a ``DistributedDataParallel`` model, of two dimensions: ranks along the inner one, a machine's, average in
            full precision, and the method goes along the outer one, as with ``machine=`` in its string. A sharded model has a
            mesh of its own.
        granularity: what is compressed as one tensor: each "parameter" (layer-wise), each "bucket" (of
            ``bucket_cap_mb``), or the whole "model".
        seed: of all random streams.
        nonfinite: what happens to a tensor in which some rank has an inf or NaN: all ranks see a NaN mean ("propagate"), 0
            ("skip"), or NonFiniteError ("error").
        check: compare all collectives between ranks before they start; slow, for debugging.
        check_replicas_every: steps from one comparison of the replicas to the next, >= 0; 0: none.
        on_difference: what replicas that differ lead to: ReplicasDifferError on all ranks ("error"), or copies of those that
            most ranks have, with a warning ("broadcast"); it needs ``optimizer``.
        checksum: whether payloads carry four bytes that are checked on receipt: for machines that flip bits.
        local_world_size: how many workers a machine has, >= 1: those of ``machine=local``, and the most that share memory; 1:
            none do. By default what GRACE_LOCAL_WORLD_SIZE says, or else the launcher.
        optimizer: where memories that follow the learning rate (``follow_lr=true``) read it: that of its first group of
            parameters. Only the ratio between steps counts, so one group stands for all that follow the same schedule. The
            optimizer is checked against what the method needs of it (:class:`grace.Needs`): momentum 0, a smaller learning
            rate.
        steps_per_epoch: synchronized steps in an epoch, for schedules that count epochs.
        scaler: the ``torch.amp.GradScaler`` that multiplies the loss. Memories are then kept in units without its scale. Every
            method with a memory needs this: otherwise what is owed would change in value with the scale.
        ignored_params: of a sharded model, parameters that each rank trains by itself on purpose, as ``fully_shard`` was told;
            torch keeps no list of them.
        transport: between the ranks of the model's process group: an object, or a name as for :func:`grace.transport`. With
            "auto" it is what GRACE_TRANSPORT names, or a process group of its own beside the model's.

    Returns:
        A handle: ``stats``, ``plan()``, ``state_dict()``, ``load_state_dict(s)``, ``checkpoint()``, ``switch(method)``,
        ``detach()``; of a sharded model also ``axes``, the stats of each axis.

    Raises:
        ConfigurationError: not such a model, a method that cannot work, a policy's rule that no parameter matches, an
            optimizer of another model or within ``backward()``, or parameters of a sharded model that no ``fully_shard`` has.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ in method, policy or model, on every rank, within a minute.

    Warns (rank 0):
        OptimizerWarning: the method diverges with this optimizer, or has special needs and was not given the optimizer.
        UncompressedWarning: no tensor of the model gets the method, it goes between machines and there is one, or it sends no
            less than bf16 would.

    Warns (each rank):
        UnexchangedWarning: a parameter is trained, and its gradient not exchanged; at once, where that can be seen, or when an
            optimizer steps.
    """
    if not isinstance(optimizer, torch.optim.Optimizer | None):
        raise ConfigurationError(f"attach: optimizer={optimizer!r}; legal: a torch.optim.Optimizer, or none")
    options = Options(
        seed, nonfinite, steps_per_epoch, check, granularity, check_replicas_every=check_replicas_every,
        on_difference=on_difference, checksum=checksum, local_world_size=local_world_size,
    )  # fmt: skip
    door, axes, auto = find_door(model), Axes(replicate, shard, weights), wanted(method)
    if auto is not None and not getattr(door, "chooses", False):
        raise ConfigurationError(
            f"auto chooses for DistributedDataParallel and fully_shard, and this {type(model).__name__} is no such model; "
            "name a method: grace advise says which"
        )
    if mesh is not None and not isinstance(model, nn.parallel.DistributedDataParallel):
        raise ConfigurationError(
            "attach: mesh= is for DistributedDataParallel; a sharded model has the mesh that fully_shard was given"
        )
    if isinstance(door, ShardedDoor):
        fixed: Any = method
        ignored = list(ignored_params)
        return door.open(
            model, fixed, options, optimizer=optimizer, scaler=scaler, transport=transport, axes=axes, ignored=ignored
        )
    if ignored_params:
        raise ConfigurationError(
            "attach: ignored_params= is for models under fully_shard; DistributedDataParallel knows what it was told to ignore"
        )
    if axes:
        raise ConfigurationError(
            "attach: replicate=, shard= and weights= are for models under fully_shard; legal here: a method"
        )
    if method is None:
        raise ConfigurationError("attach: which method? For example grace.attach(model, 'topk:ratio=0.01')")
    if mesh is not None:
        if auto is not None:
            raise ConfigurationError(
                "attach: auto with mesh=; name a method, which goes between machines: grace advise says which"
            )
        method = between_machines(method, mesh, model)  # type: ignore[arg-type]
    policy: Any = auto or options.read(method)  # type: ignore[arg-type]
    return door.open(model, policy, options, optimizer=optimizer, scaler=scaler, transport=transport)
