"""The specification: one tensor after the other."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from grace import wire as wires
from grace.flags.refusals import Refusals
from grace.kernels.counted import Chosen, CountedCode, CountedPlaces, Sampling
from grace.kernels.many import Many
from grace.kernels.sparse import payloads


def choose_reaching_many(bounds: Tensor, many: Many, code: CountedCode, *, strict: bool) -> Chosen:
    made, flags = list[Tensor](), list[Tensor]()
    for t, (x, bound) in enumerate(zip(many.xs, bounds.tolist(), strict=True)):
        memory = None if many.memories is None else many.memories[t]
        rest = None if many.rests is None else many.rests[t]
        wire, finite = payloads.write_at_least_(
            x.float(), [bound], code.index, code.values, memory, rest, strict=strict
        )
        made.append(wire[0])
        flags.append(torch.as_tensor(finite, device=x.device))
    return Chosen(torch.tensor([len(wire) for wire in made], device=bounds.device), torch.stack(flags), made)


def choose_sampled_many(like: Tensor, many: Many, code: CountedCode, sampling: Sampling, step: int) -> Chosen:
    made, flags = list[Tensor](), list[Tensor]()
    for t, x in enumerate(many.xs):
        row = x.float() if many.rests is None else many.rests[t]
        if many.memories is not None:
            torch.add(x, many.memories[t], out=row)
        finite = row.isfinite().all()
        row.masked_fill_(~finite, 0.0)
        rng = replace(many.streams[t], step=step).fork(0)
        selected = sampling.select(t, row[0], rng)
        made.append(payloads.write_counted_(row, [selected], code.index, code.values, many.rests is not None)[0])
        flags.append(finite)
    return Chosen(torch.tensor([len(wire) for wire in made], device=like.device), torch.stack(flags), made)


def write_chosen_many(message: Tensor, many: Many, code: CountedCode, chosen: Chosen, places: CountedPlaces) -> None:
    for begin, wire in zip(places.begins, chosen.notes, strict=True):
        message[begin + wires.HEADER : begin + wires.HEADER + len(wire)] = wire


def sum_counted_many(rows: Tensor, many: Many, code: CountedCode, places: CountedPlaces, weight: float) -> Tensor:
    flags = []
    for t, (x, begin) in enumerate(zip(many.xs, places.begins, strict=True)):
        at = begin + wires.HEADER
        received = [row[None, at : at + widths[t]] for row, widths in zip(rows, places.widths, strict=True)]
        with Refusals() as refused:
            payloads.sum_counted(received, x, weight, code.index, code.values, add=False)
        flags.append(torch.as_tensor(refused.ok, device=x.device))
    return torch.stack(flags)
