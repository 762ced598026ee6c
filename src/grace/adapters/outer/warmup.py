"""The mean of the gradients of a whole model, as it is: for the steps before local steps begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from grace.errors import InputError
from grace.run.groups import NONE
from grace.run.session import Session


@torch.no_grad()
def average_gradients(
    session: Session, parameters: Mapping[str, nn.Parameter], buckets: Sequence[Sequence[str]]
) -> None:
    """Replaces the gradients of all parameters by their means over the ranks. What no rank used keeps None; what some ranks
    used has zeros of the others, as under ``DistributedDataParallel``. Collective.

    Args:
        session: over which; its shapes and dtypes are those in which gradients are added up.
        parameters: of any shape, by name.
        buckets: their names, in groups that are exchanged at once.

    Raises:
        InputError: a sparse gradient, by name.
        TransportError: a collective failed; the session has ended.
    """
    for name, p in parameters.items():
        if p.grad is not None and p.grad.layout != torch.strided:
            raise InputError(f"the gradient of {name!r} is {p.grad.layout}; legal: dense ones: sparse=False")
    for number, names in enumerate(buckets):
        likes = [session.like[name] for name in names]
        sizes = [x.numel() for x in likes]
        dtype, device = likes[0].dtype, parameters[names[0]].device
        for like in likes[1:]:
            dtype = torch.promote_types(dtype, like.dtype)
        flat = torch.zeros(sum(sizes) + len(names), dtype=dtype, device=device)  # [n, and for each who used it]
        parts, users = torch.split(flat[: sum(sizes)], sizes), flat[sum(sizes) :]
        for place, (name, part) in enumerate(zip(names, parts, strict=True)):
            if (gradient := parameters[name].grad) is not None:
                part.copy_(gradient.flatten())
                users[place] = 1.0
        peer = session.peer(f"warm-up/{number}")
        mean = session.run(NONE.exchange(flat, NONE.init(flat), peer), counted=True).mean
        parts, users = torch.split(mean[: sum(sizes)], sizes), mean[sum(sizes) :]
        for place, (name, part) in enumerate(zip(names, parts, strict=True)):
            p = parameters[name]
            if p.grad is not None:
                p.grad.copy_(part.view_as(p.grad))
            elif bool(users[place] > 0):
                p.grad = part.view_as(p).to(p.dtype, copy=True)
    session.replicas.note({name: p.grad for name, p in parameters.items() if p.grad is not None})
