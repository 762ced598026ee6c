"""Memories of a bucket on an accelerator: added by one launch for all of them, and what follows them chosen by another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.compute import backends
from grace.compute.portable import add_product
from grace.contract.loan import narrow
from grace.contract.method import Exchanged
from grace.contract.together import side_by_side
from grace.contract.workspace import Workspace, take_rooms
from grace.flags.finite import Flag, on_host
from grace.kernels.multi_tensor import narrow_many, scale_many, sum_many, weigh_many
from grace.kernels.tensor_list import TensorList, poison_many, settle_many

_PIECE = 1 << 22  # numbers that plain torch weighs at a time: it needs 48 bytes for each


def takes_many(device: torch.device) -> bool:
    """True if memories on this device go by few launches, where they can."""
    return not on_host(device) and backends.runs_triton(device)


def adds_many(x: Tensor) -> bool:
    """True if memories are added to tensors like this one, of any shape, by one operation for all of them: by one launch on an
    accelerator, on the host to float32.
    """
    return takes_many(x.device) or (on_host(x.device) and x.dtype is torch.float32)


def stack_flags(outs: Sequence[Exchanged[Any]], device: torch.device) -> Tensor:
    """``[T]`` bool: which results are finite, without asking the host."""
    return join_flags([_on_device(out.finite, device) for out in outs])


def join_flags(flags: Sequence[Tensor]) -> Tensor:
    """``[T]`` bool, of 0-d flags: where they are, if they lie side by side, as those of a bucket do."""
    there = side_by_side(flags)
    return torch.stack(list(flags)) if there is None else there


def _on_device(finite: Flag, device: torch.device) -> Tensor:
    return finite if isinstance(finite, Tensor) else torch.full((), finite, device=device, dtype=torch.bool)


def put(x: Tensor, place: Tensor) -> None:
    """Copies numbers of any shape to where they should be already, contiguous and as many."""
    if x.data_ptr() != place.data_ptr():
        place.copy_(x.view(place.shape))


def add_many_(
    xs: Sequence[Tensor], memories: Sequence[Tensor], rests: Sequence[Tensor], workspace: Workspace | None
) -> bool:
    """Sets each rest to x plus the memory, of one shape and contiguous: one launch, or on the host one call.

    Returns:
        False if there is no kernel for that here: nothing has changed then.
    """
    many = _point(add_many_, xs, memories, rests, workspace, anywhere=True)
    if many is None:
        return False
    sum_many(many.like, many)
    return True


def weigh_many_(
    xs: Sequence[Tensor],
    memories: Sequence[Tensor],
    outs: Sequence[Tensor],
    weights: Tensor,
    share: float,
    workspace: Workspace | None,
) -> bool:
    """Sets each of ``outs``, float32, to ``share`` x plus its weight, of ``[T]`` float32, times the memory: as
    :func:`weigh_`, by one launch. All are of one shape and contiguous; outs may be xs.

    Returns:
        False if there is no kernel for that here: nothing has changed then.
    """
    many = _point(weigh_many_, xs, memories, outs, workspace)
    if many is None:
        return False
    weigh_many(weights, share, many)
    return True


def weigh_(out: Tensor, x: Tensor, share: float, weight: Tensor, memory: Tensor) -> Tensor:
    """Sets ``out`` to ``share`` x plus ``weight``, 0-d float32, times the memory, all of one shape; with the bits of
    ``torch.add(share * x, memory, alpha=weight)`` on the CPU.
    """
    to, g, e = out.view(-1), x.reshape(-1), memory.reshape(-1)
    for begin in range(0, len(to), _PIECE):
        piece = slice(begin, begin + _PIECE)
        to[piece].copy_(add_product(g[piece] * share, weight, e[piece]))
    return out


def lend_nothing(given: Sequence[Tensor], workspace: Workspace) -> list[Tensor]:
    """Memories for these tensors, of their shapes, that leave every number to which they are added as it is, 0 and -0 too."""
    sizes = [x.numel() for x in given]
    nothing = workspace.take(max(sizes), torch.float32, given[0].device).fill_(-0.0)
    return [nothing[:n].view(x.shape) for n, x in zip(sizes, given, strict=True)]


def scale_many_(xs: Sequence[Tensor], factors: Tensor, workspace: Workspace | None) -> bool:
    """Multiplies each tensor, contiguous, by its factor of ``[T]`` float64: one launch.

    Returns:
        False if there is no kernel for that here: nothing has changed then.
    """
    many = _point(scale_many_, xs, None, None, workspace)
    if many is None:
        return False
    scale_many(factors, many)
    return True


def rooms_like(xs: Sequence[Tensor], workspace: Workspace | None) -> list[Tensor]:
    """Uninitialized float32 rooms for the means of these tensors, of their shapes."""
    if workspace is None:
        return [torch.empty_like(x, dtype=torch.float32) for x in xs]
    rooms = take_rooms(workspace, [x.numel() for x in xs], xs[0].device)
    return [room.view(x.shape) for room, x in zip(rooms, xs, strict=True)]


def narrow_many_(
    outs: Sequence[Exchanged[Any]], xs: Sequence[Tensor], rests: Sequence[Tensor], workspace: Workspace | None
) -> None:
    """Rounds the means of these results, float32, to xs, which are narrower and of their shapes, and adds to the rests what
    that loses; both are then where they belong.
    """
    for out, rest in zip(outs, rests, strict=True):
        if out.rest is not None:  # else it is not finite, and means nothing
            put(out.rest, rest)
        out.rest = rest
    many = None if workspace is None else _point(narrow_many_, xs, None, rests, workspace)
    means = None if workspace is None else _point(rooms_like, [out.mean for out in outs], None, None, workspace)
    if many is None or means is None:
        for out, x in zip(outs, xs, strict=True):
            out.mean, out.finite = narrow(out.mean, x.dtype, out.finite, out.rest)
        return
    finite = narrow_many(stack_flags(outs, xs[0].device), means, many)
    poison_many(finite, many)
    for out, x, flag in zip(outs, xs, finite.unbind(0), strict=True):
        out.mean, out.finite = x, flag


def settle_many_(
    outs: Sequence[Exchanged[Any]], memories: Sequence[Tensor], rests: Sequence[Tensor], workspace: Workspace | None
) -> bool:
    """Makes of each rest what its memory is after the step: see :func:`grace.kernels.tensor_list.settle_many`.

    Returns:
        False if there is no kernel for that here, or a rest is elsewhere: nothing has changed then.
    """
    flags = [out.finite for out in outs if isinstance(out.finite, Tensor)]
    if len(flags) != len(outs) or any(out.rest is not rest for out, rest in zip(outs, rests, strict=True)):
        return False
    many = _point(settle_many_, rests, memories, rests, workspace)
    if many is None:
        return False
    settle_many(join_flags(flags), many)
    return True


def _point(
    who: object,
    xs: Sequence[Tensor],
    memories: Sequence[Tensor] | None,
    rests: Sequence[Tensor] | None,
    workspace: Workspace | None,
    *,
    anywhere: bool = False,
) -> TensorList | None:
    """These tensors, if kernels for many take them where they are, with ``anywhere`` also on the host."""
    if workspace is None or not xs or not (adds_many(xs[0]) if anywhere else takes_many(xs[0].device)):
        return None
    if any(x.numel() == 0 for x in xs) or any(memory.dtype is not torch.float32 for memory in memories or ()):
        return None
    if not all(x.is_contiguous() for x in xs):
        return None
    sizes = tuple([x.numel() for x in xs])
    key = (who, xs[0].device, sizes)
    many: TensorList = workspace.kept.get(key) or TensorList(sizes, (), (), xs[0].device)
    if not many.point(xs, memories, rests):
        return None
    workspace.kept[key] = many
    return many
