"""The names of ``horovod.torch``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from grace_dl.communicator import Lasting
from grace_dl.horovod import common
from grace_dl.horovod.common import *  # noqa: F403
from grace_dl.horovod.common import Compression, allgather_object, broadcast_object, transport
from grace_dl.horovod.optimizer import DistributedOptimizer

__all__ = [
    *common.__all__,
    "Compression", "DistributedOptimizer", "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_",
    "allreduce_async", "allreduce_async_", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "grouped_allreduce", "poll", "synchronize",
]  # fmt: skip


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = None,
    op: Any = None,
    **knobs: Any,
) -> Tensor:
    """The mean over the workers, or what ``op`` says, in a new tensor."""
    common.find_method(compression)
    return common.allreduce(tensor, average, op)


def allreduce_(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: Any = None, **knobs: Any
) -> Tensor:
    """The same in place."""
    with torch.no_grad():
        return tensor.copy_(common.allreduce(tensor, average, op))


def grouped_allreduce(tensors: Iterable[Tensor], average: bool | None = None, **knobs: Any) -> list[Tensor]:
    """:func:`allreduce` of each."""
    return [allreduce(x, average, **knobs) for x in tensors]


def allgather(tensor: Tensor, name: str | None = None, **knobs: Any) -> Tensor:
    """Everyone's tensors one after the other."""
    return common.allgather(tensor)


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None, **knobs: Any) -> Tensor:
    """The root's tensor, in a new one."""
    return common.broadcast(tensor, root_rank)


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None, **knobs: Any) -> Tensor:
    """The same in place."""
    with torch.no_grad():
        return tensor.copy_(common.broadcast(tensor, root_rank))


# Horovod's return at once, and match by name. These return when they are done, and match by order: all ranks call alike.
allreduce_async, allreduce_async_ = allreduce, allreduce_
allgather_async, broadcast_async, broadcast_async_ = allgather, broadcast, broadcast_


def synchronize(handle: Any) -> Any:
    """The result of an asynchronous call."""
    return handle


def poll(handle: Any) -> bool:
    """True: it is done."""
    return True


def barrier(*args: Any, **knobs: Any) -> None:
    """Returns when all ranks have called it."""
    common.allreduce(torch.zeros(1, dtype=torch.float32, device="cpu"), op=common.Sum)


def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0) -> None:
    """Gives all ranks the root's numbers; ``params`` is a ``state_dict`` or ``named_parameters()``."""
    from grace.adapters.broadcast import broadcast_parameters as share

    share(params, root_rank, transport=Lasting(transport()))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Gives all ranks the root's learning rates, momenta and so on."""
    from grace.adapters.broadcast import broadcast_optimizer_state as share

    share(optimizer, root_rank, transport=Lasting(transport()))
