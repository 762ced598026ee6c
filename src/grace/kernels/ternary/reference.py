"""The specification: one tensor after the other."""

from __future__ import annotations

from torch import Tensor

from grace.kernels.packing import packed_trits_bytes
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each
from grace.kernels.ternary import QuarticCode, QuarticPlaces
from grace.kernels.ternary.codes import add_ternary, write_ternary
from grace.kernels.variable_sparse.one_by_one import choose_each, put_wires, sum_finite_, sum_wires
from grace.kernels.variable_sparse.parts import Chosen


def choose_quartic_many(like: Tensor, many: TensorList, code: QuarticCode) -> Chosen:
    def write(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Tensor]:
        return _write(x, code.s, memory, rest, zre=True)

    return choose_each(many, like.device, write)


def write_quartic_many(
    message: Tensor, many: TensorList, code: QuarticCode, chosen: Chosen, places: QuarticPlaces
) -> None:
    put_wires(message, chosen, places)


def sum_quartic_many(rows: Tensor, many: TensorList, code: QuarticCode, places: QuarticPlaces, weight: float) -> Tensor:
    def add_up(received: list[Tensor], x: Tensor, t: int) -> None:
        _sum(received, x, weight, zre=True)

    return sum_wires(rows, many, places, add_up)


def encode_ternary_many(message: Tensor, many: TensorList, s: float) -> Tensor:
    return encode_each(message, many, lambda _, x, memory, rest: _write(x, s, memory, rest, zre=False))


def sum_ternary_many(rows: Tensor, many: TensorList, weight: float) -> Tensor:
    widths = [4 + packed_trits_bytes(n) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: _sum(received, out, weight, zre=False))


def _write(x: Tensor, s: float, memory: Tensor | None, rest: Tensor | None, *, zre: bool) -> tuple[Tensor, Tensor]:
    row, finite = sum_finite_(x, memory, rest)
    wire = write_ternary(row, s, zre=zre)
    if rest is not None:
        add_ternary(wire, rest, -1.0, zre=zre)
    return wire, finite


def _sum(received: list[Tensor], out: Tensor, weight: float, *, zre: bool) -> None:
    out.zero_()
    for wire in received:
        add_ternary(wire, out, weight, zre=zre)
