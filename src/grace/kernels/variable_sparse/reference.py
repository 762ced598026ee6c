"""The specification: one tensor after the other."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from grace.flags.finite import Flag
from grace.kernels.sparse import payloads
from grace.kernels.sparse_codes.wire import add_coded_, write_coded_, write_means_
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse import Chosen, CountedCode, CountedPlaces, Sampling, SideSelection
from grace.kernels.variable_sparse.one_by_one import choose_each, put_wires, sum_finite_, sum_wires, sum_wires_in_turn


def choose_reaching_many(bounds: Tensor, many: TensorList, code: CountedCode, *, strict: bool) -> Chosen:
    limits = bounds.tolist()

    def write(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        return payloads.write_at_least_(x.float(), [limits[t]], code.index, code.values, memory, rest, strict=strict)

    return choose_each(many, bounds.device, write)


def choose_coded_many(fronts: Tensor, bounds: Tensor, many: TensorList, code: CountedCode, *, strict: bool) -> Chosen:
    limits, codes = bounds.tolist(), code.codes
    assert codes is not None

    def write(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        row, finite = sum_finite_(x, memory, rest)
        front = codes.front(fronts[t : t + 1])
        keep = rest is not None
        return write_coded_(row[0], front, limits[t], codes, code.index, strict=strict, keep_rest=keep)[None], finite

    return choose_each(many, bounds.device, write)


def choose_sampled_many(like: Tensor, many: TensorList, code: CountedCode, sampling: Sampling, step: int) -> Chosen:
    def write(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        row, finite = sum_finite_(x, memory, rest)
        selected = sampling.select(t, row[0], replace(many.streams[t], step=step).fork(0))
        return payloads.write_counted_(row, [selected], code.index, code.values, rest is not None), finite

    return choose_each(many, like.device, write)


def choose_sides_many(like: Tensor, many: TensorList, code: CountedCode, sides: SideSelection, step: int) -> Chosen:
    def write(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        row, finite = sum_finite_(x, memory, rest)
        streams = [replace(many.streams[t], step=step).fork(side) for side in range(sides.searches)]
        return write_means_(row[0], sides.select(row[0], streams), code.index, keep_rest=rest is not None)[None], finite

    return choose_each(many, like.device, write)


def write_chosen_many(
    message: Tensor, many: TensorList, code: CountedCode, chosen: Chosen, places: CountedPlaces
) -> None:
    put_wires(message, chosen, places)


def sum_counted_many(rows: Tensor, many: TensorList, code: CountedCode, places: CountedPlaces, weight: float) -> Tensor:
    codes = code.codes
    if codes is not None:
        return sum_wires_in_turn(
            rows, many, places, lambda wire, x, _t: add_coded_(wire, x[0], weight, codes, code.index)
        )

    def add_up(received: list[Tensor], x: Tensor, t: int) -> None:
        payloads.sum_counted(received, x, weight, code.index, code.values, add=False)

    return sum_wires(rows, many, places, add_up)
