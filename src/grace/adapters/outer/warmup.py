"""The mean of the gradients of a whole model, as it is: for the steps before local steps begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from grace.collectives import Exchange
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
        if p.grad is not None:
            check_dense(name, p.grad)
    for number, names in enumerate(buckets):
        gradients = {name: parameters[name].grad for name in names}
        means = session.run(averaging(session, gradients, number), counted=True)
        for name, mean in means.items():
            p = parameters[name]
            if mean is None:
                continue
            if p.grad is not None:
                p.grad.copy_(mean.view_as(p.grad))
            else:
                p.grad = mean.view_as(p).to(p.dtype, copy=True)
    session.replicas.note({name: p.grad for name, p in parameters.items() if p.grad is not None})


def averaging(
    session: Session, gradients: Mapping[str, Tensor | None], number: int
) -> Exchange[dict[str, Tensor | None]]:
    """Averages gradients as they are, in one all-reduce: a flat ``[n]`` of each, or None where no rank has one. Who has none
    counts as zeros.

    Args:
        session: which knows tensors of these names.
        gradients: of one bucket, of any shapes, by name.
        number: of the bucket.
    """
    likes = [session.like[name] for name in gradients]
    sizes = [x.numel() for x in likes]
    dtype = likes[0].dtype
    for like in likes[1:]:
        dtype = torch.promote_types(dtype, like.dtype)
    given = [gradient for gradient in gradients.values() if gradient is not None]
    device = given[0].device if given else likes[0].device
    flat = torch.zeros(sum(sizes) + len(sizes), dtype=dtype, device=device)  # [n, and for each who used it]
    parts, users = torch.split(flat[: sum(sizes)], sizes), flat[sum(sizes) :]
    for place, (gradient, part) in enumerate(zip(gradients.values(), parts, strict=True)):
        if gradient is not None:
            part.copy_(gradient.flatten())
            users[place] = 1.0
    out = yield from NONE.exchange(flat, NONE.init(flat), session.peer(f"warm-up/{number}"))
    parts, users = torch.split(out.mean[: sum(sizes)], sizes), out.mean[sum(sizes) :]
    return {
        name: part if gradient is not None or bool(users[place] > 0) else None
        for place, ((name, gradient), part) in enumerate(zip(gradients.items(), parts, strict=True))
    }


def check_dense(name: str, gradient: Tensor) -> None:
    """Refuses a sparse gradient, of any shape.

    Raises:
        InputError: it is one.
    """
    if gradient.layout != torch.strided:
        raise InputError(f"the gradient of {name!r} is {gradient.layout}; legal: dense ones: sparse=False")
