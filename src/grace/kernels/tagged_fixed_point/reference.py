"""The specification: one tensor after the other."""

from __future__ import annotations

from torch import Tensor

from grace.kernels.tagged_fixed_point import TaggedCode, TaggedPlaces
from grace.kernels.tagged_fixed_point.codes import add_tagged, write_tagged
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse.one_by_one import choose_each, put_wires, sum_finite_, sum_wires_in_turn
from grace.kernels.variable_sparse.parts import Chosen


def choose_tagged_many(like: Tensor, many: TensorList, code: TaggedCode) -> Chosen:
    def write(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Tensor]:
        row, finite = sum_finite_(x, memory, rest)
        wire = write_tagged(row, code)
        if rest is not None:
            add_tagged(wire, rest, -1.0, code)
        return wire, finite

    return choose_each(many, like.device, write)


def write_tagged_many(
    message: Tensor, many: TensorList, code: TaggedCode, chosen: Chosen, places: TaggedPlaces
) -> None:
    put_wires(message, chosen, places)


def sum_tagged_many(rows: Tensor, many: TensorList, code: TaggedCode, places: TaggedPlaces, weight: float) -> Tensor:
    return sum_wires_in_turn(rows, many, places, lambda wire, x, _t: add_tagged(wire, x, weight, code))
