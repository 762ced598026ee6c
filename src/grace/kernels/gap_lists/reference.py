"""The specification: one tensor after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from grace import wire as wires
from grace.flags.refusals import Refusals
from grace.kernels.counted import Chosen
from grace.kernels.gap_lists import GapLists, GapPairs, GapPlaces
from grace.kernels.index_lists import codes
from grace.kernels.many import Many
from grace.kernels.sparse import payloads
from grace.kernels.sparse.reference import sum_grid


def choose_listed_many(index: Tensor, fields: Tensor, finite: Tensor, many: Many, lists: GapLists) -> Chosen:
    rows = zip(many.sizes, index.split_with_sizes(lists.kept), fields.split_with_sizes(lists.before), strict=True)
    made = [torch.cat((before, codes.encode(own[None], n, lists.index)[0])) for n, own, before in rows]
    return Chosen(torch.tensor([len(wire) for wire in made], device=finite.device), finite, made)


def write_gap_pairs_many(message: Tensor, many: Many, code: GapPairs, chosen: Chosen, places: GapPlaces) -> None:
    for begin, wire in zip(places.begins, chosen.notes, strict=True):
        message[begin + wires.HEADER : begin + wires.HEADER + len(wire)] = wire


def sum_gap_pairs_many(rows: Tensor, many: Many, code: GapPairs, places: GapPlaces, weight: float) -> Tensor:
    flags, values = [], "bfloat16" if code.narrow else "float32"
    for t, (x, k, begin) in enumerate(zip(many.xs, places.lists.kept, places.begins, strict=True)):
        at = begin + wires.HEADER
        received = [row[None, at : at + widths[t]] for row, widths in zip(rows, places.widths, strict=True)]
        with Refusals() as refused:
            if code.grid is None:
                payloads.sum_pairs(received, x, weight, k, code.index, values, add=False)
            else:
                sum_grid(received, x.zero_(), k, code.index, code.grid, weight)
        flags.append(torch.as_tensor(refused.ok, device=x.device))
    return torch.stack(flags)
