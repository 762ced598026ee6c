"""The specification: one tensor after the other."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from grace.kernels.minmax_sketch import MinMaxCode, MinMaxPlaces
from grace.kernels.minmax_sketch.codes import add_minmax_, write_minmax_
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse.one_by_one import choose_each, put_wires, sum_finite_, sum_wires_in_turn
from grace.kernels.variable_sparse.parts import Chosen


def choose_minmax_many(like: Tensor, many: TensorList, code: MinMaxCode, step: int) -> Chosen:
    def write(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Tensor]:
        row, finite = sum_finite_(x, memory, rest)
        hashes = replace(many.streams[t], step=step)
        return write_minmax_(row[0], code, hashes.fork(0), hashes, keep_rest=rest is not None)[None], finite

    return choose_each(many, like.device, write)


def write_minmax_many(
    message: Tensor, many: TensorList, code: MinMaxCode, chosen: Chosen, places: MinMaxPlaces
) -> None:
    put_wires(message, chosen, places)


def sum_minmax_many(rows: Tensor, many: TensorList, code: MinMaxCode, places: MinMaxPlaces, weight: float) -> Tensor:
    def add(wire: Tensor, x: Tensor, t: int) -> None:
        add_minmax_(wire, x[0], weight, code, replace(many.streams[t], step=places.step))

    return sum_wires_in_turn(rows, many, places, add)
