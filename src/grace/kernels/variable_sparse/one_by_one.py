"""Shared parts of the references for wires whose sizes depend on the data: one tensor after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grace import wire as wires
from grace.flags.finite import Flag
from grace.flags.refusals import Refusals
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse.parts import Chosen, WirePlaces


def sum_finite_(x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Tensor]:
    """``x + memory``, float32 ``[b, n]``, 0 if that is not finite; and whether it is. It overwrites the rest, or without one
    x.
    """
    row = x.float() if rest is None else rest
    if memory is not None:
        torch.add(x, memory, out=row)
    finite = row.isfinite().all()
    return row.masked_fill_(~finite, 0.0), finite


def choose_each(
    many: TensorList,
    device: torch.device,
    write: Callable[[int, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Flag]],
) -> Chosen:
    """The selection of each tensor, made by ``write(t, x, memory, rest)``, which returns (the wire ``[1, w]``, whether the
    sum is finite).
    """
    made, flags = list[Tensor](), list[Tensor]()
    for t, x in enumerate(many.xs):
        memory = None if many.memories is None else many.memories[t]
        wire, finite = write(t, x, memory, None if many.rests is None else many.rests[t])
        made.append(wire[0])
        flags.append(torch.as_tensor(finite, device=device, dtype=torch.bool))
    return choose_wires(made, torch.stack(flags))


def choose_wires(made: Sequence[Tensor], finite: Tensor) -> Chosen:
    """The selection of T tensors, ``finite [T]`` or not, whose wires ``[w]`` are already made."""
    return Chosen(torch.tensor([len(wire) for wire in made], device=finite.device, dtype=torch.int64), finite, made)


def put_wires(message: Tensor, chosen: Chosen, places: WirePlaces) -> None:
    """Writes the wires of :func:`choose_wires` to their places in ``message [s]`` uint8."""
    for begin, wire in zip(places.begins, chosen.notes, strict=True):
        message[begin + wires.HEADER : begin + wires.HEADER + len(wire)] = wire


def sum_wires(
    rows: Tensor, many: TensorList, places: WirePlaces, add_up: Callable[[list[Tensor], Tensor, int], None]
) -> Tensor:
    """``[T]`` bool, which wires in ``rows [W, s]`` uint8 are such as a sender writes: ``add_up(wires, x, t)`` sets x to the
    sum of what its wires ``[1, w]`` say, and refuses them if they are not.
    """
    flags = []
    for t, (x, begin) in enumerate(zip(many.xs, places.begins, strict=True)):
        at = begin + wires.HEADER
        received = [row[None, at : at + widths[t]] for row, widths in zip(rows, places.widths, strict=True)]
        with Refusals() as refused:
            add_up(received, x, t)
        flags.append(torch.as_tensor(refused.ok, device=x.device, dtype=torch.bool))
    return torch.stack(flags)


def sum_wires_in_turn(
    rows: Tensor, many: TensorList, places: WirePlaces, add: Callable[[Tensor, Tensor, int], None]
) -> Tensor:
    """As :func:`sum_wires`: ``add(wire, x, t)`` adds what one of them says."""

    def add_up(received: list[Tensor], x: Tensor, t: int) -> None:
        x.zero_()
        for wire in received:
            add(wire, x, t)

    return sum_wires(rows, many, places, add_up)
