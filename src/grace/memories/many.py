"""Memories of a bucket on an accelerator: what follows them is chosen by one launch for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.compute import backends
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.flags.finite import Flag, on_host
from grace.kernels.many import Many, settle_many


def takes_many(device: torch.device) -> bool:
    """Whether memories on this device go by few launches, where they can."""
    return not on_host(device) and backends.runs_triton(device)


def stack_flags(outs: Sequence[Exchanged[Any]], device: torch.device) -> Tensor:
    """``[T]`` bool: which results are finite, without asking the host."""
    return torch.stack([_on_device(out.finite, device) for out in outs])


def _on_device(finite: Flag, device: torch.device) -> Tensor:
    return finite if isinstance(finite, Tensor) else torch.full((), finite, device=device)


def put(x: Tensor, place: Tensor) -> None:
    """Copies numbers of any shape to where they should be already, contiguous and as many."""
    if x.data_ptr() != place.data_ptr():
        place.copy_(x.view(place.shape))


def settle_many_(outs: Sequence[Exchanged[Any]], peers: Sequence[Peer]) -> bool:
    """Makes of each rest that was lent what its memory is after the step: see :func:`grace.kernels.many.settle_many`.

    Returns:
        False if there is no kernel for that here, or a rest is elsewhere: nothing has changed then.
    """
    workspace = peers[0].lent.workspace if peers else None
    if workspace is None or not takes_many(outs[0].mean.device):
        return False
    memories, rests, flags = [], [], []
    for out, peer in zip(outs, peers, strict=True):
        memory, rest = peer.lent.memory, peer.lent.rest
        if memory is None or rest is None or out.rest is not rest or not isinstance(out.finite, Tensor):
            return False
        if memory.dtype is not torch.float32 or memory.numel() == 0:
            return False
        memories.append(memory.view(1, -1))
        rests.append(rest.view(1, -1))
        flags.append(out.finite)
    sizes = tuple(x.numel() for x in rests)
    key = (settle_many_, rests[0].device, sizes)
    many: Many = workspace.kept.get(key) or Many(sizes, (), (), rests[0].device)
    if not many.point(rests, memories, rests):
        return False
    workspace.kept[key] = many
    settle_many(torch.stack(flags), many)
    return True
