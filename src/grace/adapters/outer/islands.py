"""Workers of several ranks: the model is under ``fully_shard`` within a worker, and workers exchange shard with shard."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from grace.adapters.outer.presets import OuterSettings
from grace.adapters.trained import is_split
from grace.adapters.wrappers import find_exchanging
from grace.errors import ConfigurationError, TransportError
from grace.transports.agreement import SECONDS
from grace.transports.torch_distributed import TorchDistributed


def find_island(
    parameters: Mapping[str, Tensor], group: dist.ProcessGroup | None, settings: OuterSettings
) -> dist.ProcessGroup | None:
    """The ranks that have the other shards of this worker's model; None: each rank has the whole model.

    Args:
        parameters: that are trained, of any shapes, by name.
        group: the ranks that have the same shards in other workers.
        settings: of the loop.

    Raises:
        ConfigurationError: some are sharded and others not; a mesh of several dimensions, or that is not only sharded over;
            no group, or one with a rank of this worker's mesh; a warm-up.
    """
    split = {name: p for name, p in parameters.items() if is_split(p)}
    if not split:
        return None
    if whole := sorted(parameters.keys() - split.keys()):
        raise ConfigurationError(f"{whole[0]!r} is not sharded, and {next(iter(split))!r} is; legal: all, or none")
    mesh = next(iter(split.values())).device_mesh
    for name, p in split.items():
        places = p.placements
        if p.device_mesh != mesh or mesh.ndim != 1 or not places[0].is_shard():
            raise ConfigurationError(
                f"{name!r} is placed as {places} on a mesh of {mesh.ndim} dimensions; legal in an outer loop: a mesh of one "
                "dimension within each worker, fully_shard(model, mesh=mesh['shard'])"
            )
    if group is None:
        raise ConfigurationError(
            "the model is sharded: group= says between which ranks, those that have the same shard in each worker: "
            "mesh['worker'].get_group() of init_device_mesh(device, (workers, shards), mesh_dim_names=('worker', 'shard'))"
        )
    both = set(dist.get_process_group_ranks(group)) & set(mesh.mesh.flatten().tolist())
    if both != {dist.get_rank()}:
        raise ConfigurationError(
            f"ranks {sorted(both)} are in group= and have shards of the same worker's model; legal: a group that has one rank "
            "of each worker"
        )
    if settings.warmup_steps:
        raise ConfigurationError("warmup_steps with a sharded model; legal: warmup_steps=0")
    shards: dist.ProcessGroup = mesh.get_group()
    return shards


def compare_within(island: dist.ProcessGroup, settings: Mapping[str, object]) -> tuple[str, ...]:
    """The different settings that ranks of this worker have, in words: one, if all have the same. For the fingerprint between
    workers, so that all ranks of all workers hear of a difference. All ranks of the worker call it.
    """
    transport = TorchDistributed.of_same_ranks(island)
    try:
        told = transport.all_gather_text(
            json.dumps({key: str(value) for key, value in settings.items()}), seconds=SECONDS
        )
    finally:
        transport.close()
    return tuple(sorted(set(told)))


def agree_within(island: dist.ProcessGroup, error: BaseException | None, dropped: bool, device: torch.device) -> bool:
    """True if some rank of this worker has dropped a tensor. All ranks of the worker call it.

    Args:
        island: these ranks.
        error: in which the exchange of this rank's shard has ended.
        dropped: whether this rank has dropped a tensor.
        device: of the tensors.

    Raises:
        TransportError: the exchange of some rank's shard has ended in an error; on all ranks, with the same words.
    """
    worst = torch.tensor(2 if error is not None else int(dropped), dtype=torch.int32, device=device)
    dist.all_reduce(worst, dist.ReduceOp.MAX, group=island)
    if int(worst) < 2:
        return bool(worst)
    texts: list[str | None] = [None] * dist.get_world_size(island)
    dist.all_gather_object(
        texts, None if error is None else f"{type(error).__name__}: {error.args[0] if error.args else ''}", island
    )
    failed = {shard: told for shard, told in enumerate(texts) if told is not None}
    shards = "shard" if len(failed) == 1 else "shards"
    raise TransportError(
        f"the exchange of {shards} {', '.join(map(str, failed))} of this worker has failed, and so the worker ends: "
        f"{next(iter(failed.values()))}"
    ) from error


def reshard(model: nn.Module) -> None:
    """Drops parameters that a forward pass alone has gathered: the next one gathers what the shards hold then."""
    for module in model.modules():
        if find_exchanging(module) == "FSDPModule":
            module.reshard()  # type: ignore[operator]
