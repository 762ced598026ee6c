"""The specification: one tensor after the other."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from grace.flags.finite import Flag
from grace.kernels.sampling import Budgets, Chances, DrawnCode, DrawnPlaces
from grace.kernels.sampling.wire import add_sampled_, sample_
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse.one_by_one import choose_each, put_wires, sum_finite_, sum_wires_in_turn
from grace.kernels.variable_sparse.parts import Chosen


def choose_drawn_many(like: Tensor, many: TensorList, code: DrawnCode, chances: Chances | Budgets, step: int) -> Chosen:
    def write(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        row, finite = sum_finite_(x, memory, rest)
        stream = replace(many.streams[t], step=step)
        wire = sample_(row, chances.unit, stream, chances.factor(row.shape[1]), code.index)
        if rest is not None:
            add_sampled_(wire, row, -1.0, code.index)
        return wire, finite

    return choose_each(many, like.device, write)


def write_drawn_many(message: Tensor, many: TensorList, code: DrawnCode, chosen: Chosen, places: DrawnPlaces) -> None:
    put_wires(message, chosen, places)


def sum_drawn_many(rows: Tensor, many: TensorList, code: DrawnCode, places: DrawnPlaces, weight: float) -> Tensor:
    return sum_wires_in_turn(rows, many, places, lambda wire, x, _t: add_sampled_(wire, x, weight, code.index))
