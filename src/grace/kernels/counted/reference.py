"""The specification: one tensor after the other."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from grace import wire as wires
from grace.flags.refusals import Refusals
from grace.kernels.coded.wire import add_coded_, write_coded_
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


def choose_coded_many(fronts: Tensor, bounds: Tensor, many: Many, code: CountedCode, *, strict: bool) -> Chosen:
    made, flags, codes = list[Tensor](), list[Tensor](), code.codes
    assert codes is not None
    for t, (x, bound) in enumerate(zip(many.xs, bounds.tolist(), strict=True)):
        row, finite = _sum_of(many, t, x)
        front = fronts[t : t + 1].view(torch.float32) if codes.field[1] is torch.float32 else fronts[t : t + 1].byte()
        made.append(
            write_coded_(row[0], front, bound, codes, code.index, strict=strict, keep_rest=many.rests is not None)
        )
        flags.append(finite)
    return Chosen(torch.tensor([len(wire) for wire in made], device=bounds.device), torch.stack(flags), made)


def _sum_of(many: Many, t: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """(x plus its memory, in the rest if there is one, or 0 if it is not finite; whether it is)"""
    row = x.float() if many.rests is None else many.rests[t]
    if many.memories is not None:
        torch.add(x, many.memories[t], out=row)
    elif many.rests is not None:
        row.copy_(x)
    finite = row.isfinite().all()
    return row.masked_fill_(~finite, 0.0), finite


def choose_sampled_many(like: Tensor, many: Many, code: CountedCode, sampling: Sampling, step: int) -> Chosen:
    made, flags = list[Tensor](), list[Tensor]()
    for t, x in enumerate(many.xs):
        row, finite = _sum_of(many, t, x)
        rng = replace(many.streams[t], step=step).fork(0)
        selected = sampling.select(t, row[0], rng)
        made.append(payloads.write_counted_(row, [selected], code.index, code.values, many.rests is not None)[0])
        flags.append(finite)
    return Chosen(torch.tensor([len(wire) for wire in made], device=like.device), torch.stack(flags), made)


def write_chosen_many(message: Tensor, many: Many, code: CountedCode, chosen: Chosen, places: CountedPlaces) -> None:
    for begin, wire in zip(places.begins, chosen.notes, strict=True):
        message[begin + wires.HEADER : begin + wires.HEADER + len(wire)] = wire


def sum_counted_many(rows: Tensor, many: Many, code: CountedCode, places: CountedPlaces, weight: float) -> Tensor:
    flags, codes = [], code.codes
    for t, (x, begin) in enumerate(zip(many.xs, places.begins, strict=True)):
        at = begin + wires.HEADER
        received = [row[None, at : at + widths[t]] for row, widths in zip(rows, places.widths, strict=True)]
        with Refusals() as refused:
            if codes is None:
                payloads.sum_counted(received, x, weight, code.index, code.values, add=False)
            else:
                x.zero_()
                for wire in received:
                    add_coded_(wire, x[0], weight, codes, code.index)
        flags.append(torch.as_tensor(refused.ok, device=x.device))
    return torch.stack(flags)
