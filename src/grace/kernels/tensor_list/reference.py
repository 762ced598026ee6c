"""The specification of operations on many tensors: one tensor after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.flags.refusals import Refusals
from grace.kernels.tensor_list import TensorList


def poison_many(flags: Tensor, many: TensorList) -> None:
    for flag, x in zip(flags, many.xs, strict=True):
        x.masked_fill_(~flag, math.nan)


def agree_many(
    rows: Tensor,
    words: Tensor,
    good: int | Tensor,
    legal: Tensor,
    many: TensorList,
    *,
    kept: Tensor | None = None,
    clear: bool = False,
) -> tuple[Tensor, Tensor]:
    headers = rows.view(torch.int32)[:, words]  # [W, T]
    finite = (headers == good).all(dim=0)
    known = ((headers == good) | (headers == good + 1)).all(dim=0)
    fine = finite & legal if kept is None else finite & legal & kept
    for flag, x in zip(fine, many.xs, strict=True):
        x.masked_fill_(~flag, 0.0 if clear else math.nan)
    return torch.stack((fine, known, legal | ~finite)), headers


def settle_many(flags: Tensor, many: TensorList, *, drops: bool = True) -> None:
    assert many.rests is not None
    assert many.memories is not None
    for flag, rest, memory in zip(flags, many.rests, many.memories, strict=True):
        small = memory.abs() <= torch.finfo(memory.dtype).max / 64
        torch.where(flag, rest, memory.masked_fill(~small, 0.0) if drops else memory, out=rest)


def encode_each(
    message: Tensor,
    many: TensorList,
    encode: Callable[[int, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Flag]],
) -> Tensor:
    """Encodes one tensor after the other, each as number t, x, memory and rest: ``[T]`` bool, which of them were finite."""
    flags = []
    for t, x in enumerate(many.xs):
        memory = None if many.memories is None else many.memories[t]
        rest = None if many.rests is None else many.rests[t]
        wires, finite = encode(t, x.float(), memory, rest)
        for place, wire in zip(many.places[t * many.rows :], wires, strict=False):
            message[place : place + len(wire)] = wire
        flags.append(finite)
    return stack_flags(flags, many)


def sum_each(
    rows: Tensor, many: TensorList, widths: Sequence[int], add_up: Callable[[list[Tensor], Tensor], None]
) -> Tensor:
    """Adds up the wires of one row after the other, which are so many bytes wide: ``[T]`` bool, which tensors' were legal."""
    flags = []
    outs = [row[None] for x in many.xs for row in x]
    for out, place, width in zip(outs, many.places, widths, strict=True):
        with Refusals() as refused:
            try:
                add_up(list(rows[:, None, place : place + width]), out)
                flags.append(refused.ok)
            except PayloadError:  # the host can tell at once
                flags.append(False)
    return stack_flags(flags, many)


def stack_flags(flags: Sequence[Flag], many: TensorList) -> Tensor:
    """``[T]`` bool: those of each tensor, or of each of its rows, of whom all have to hold."""
    if all(flag is True for flag in flags):
        return many.all_set
    given = [torch.as_tensor(flag, device=many.device, dtype=torch.bool) for flag in flags]
    return many.all_of(torch.stack(given))
