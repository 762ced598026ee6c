"""The specification: one tensor after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.index_codes import codes
from grace.kernels.index_codes.variable import GapLists, GapPairs, GapPlaces
from grace.kernels.sparse import TopKPairs, payloads
from grace.kernels.sparse.reference import sum_grid
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse import Chosen
from grace.kernels.variable_sparse.one_by_one import choose_wires, put_wires, sum_wires


def choose_listed_many(index: Tensor, fields: Tensor, finite: Tensor, many: TensorList, lists: GapLists) -> Chosen:
    rows = zip(many.sizes, index.split_with_sizes(lists.kept), fields.split_with_sizes(lists.before), strict=True)
    made = [torch.cat((before, codes.encode(own[None], n, lists.index)[0])) for n, own, before in rows]
    return choose_wires(made, finite)


def write_gap_pairs_many(message: Tensor, many: TensorList, code: GapPairs, chosen: Chosen, places: GapPlaces) -> None:
    put_wires(message, chosen, places)


def sum_gap_pairs_many(rows: Tensor, many: TensorList, code: GapPairs, places: GapPlaces, weight: float) -> Tensor:
    def add_up(received: list[Tensor], x: Tensor, t: int) -> None:
        k = places.lists.kept[t]
        if code.grid is None:
            payloads.sum_pairs(received, x, TopKPairs(k, code.index, code.narrow), weight, add=False)
        else:
            sum_grid(received, x.zero_(), k, code.index, code.grid, weight)

    return sum_wires(rows, many, places, add_up)
