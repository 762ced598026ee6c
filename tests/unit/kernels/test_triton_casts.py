"""Triton's wires of numbers as they are, of the tensors of a bucket, in its interpreter, against the specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.kernels import TensorList, encode_casts_many, sum_casts_many
from tests.unit.kernels.test_triton_multi_tensor import numbers
from tests.unit.kernels.triton_checks import agree, interpreter, night
from tests.unit.kernels.triton_mutants import memory_left_out, never, words_as_numbers

__all__ = ["interpreter"]

SIZES = (1, 5, 300, 1023, 1024, 1025)
WORLD = 3
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def casts(
    sizes: tuple[int, ...], dtype: torch.dtype, given: torch.dtype, *, rows: int = 1, memory: bool = True,
    there: bool = False, odd: bool = True,
) -> list[Tensor]:  # fmt: skip
    """Wires of tensors of the dtype ``given``, the third of which is not finite, their rests, and the sums of three workers'.
    ``there``: the rests are the tensors.
    """
    whole = tuple(rows * n for n in sizes)
    width = sum(-(-n * dtype.itemsize // 4) * 4 for n in sizes for _ in range(rows))
    places, at = [], 0
    for n in sizes:
        for _ in range(rows):
            places.append(at)
            at += -(-n * dtype.itemsize // 4) * 4
    many, out = TensorList(sizes, places, (), torch.device("cpu"), rows), list[Tensor]()
    messages = torch.zeros(WORLD, width, dtype=torch.uint8)
    for rank, message in enumerate(messages):
        xs = [x.clone() if there else x for x in numbers(whole, rank, given, odd)]
        xs[-1].view(-1)[0], xs[-1].view(-1)[-1] = 66e3 if given is not torch.float16 else 6e4, -1e-41
        memories = numbers(whole, WORLD + rank, odd=odd) if memory else None
        rests = xs if there else numbers(whole, 9, odd=odd) if memory else None
        many.point(xs, memories, rests)
        if len(sizes) > 2:
            xs[2].view(-1)[-1] = torch.inf
        out.append(encode_casts_many(message, many, dtype))
        if len(sizes) > 2:  # of which neither means anything
            for row in range(2 * rows, 3 * rows):
                message[places[row] : places[row] + sizes[2] * dtype.itemsize] = 0
        out += [rest.clone() for t, rest in enumerate(rests or ()) if t != 2]
    sums = numbers(whole, 0, odd=odd)
    many.point(sums)
    sum_casts_many(messages, many, dtype, 1 / WORLD)
    return [*out, messages, *sums]


@pytest.mark.parametrize("given", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wires_rests_and_sums(dtype: torch.dtype, given: torch.dtype) -> None:
    for odd in (False, True):
        agree(lambda odd=odd: casts(SIZES, dtype, given, odd=odd), (dtype, given, odd))  # type: ignore[misc]
    agree(lambda: casts((7, 1025), dtype, given, memory=False), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_and_rests_in_place(dtype: torch.dtype) -> None:
    agree(lambda: casts((5, 16, 3), dtype, torch.float32, rows=4), dtype)
    agree(lambda: casts((1030, 16), dtype, torch.float32, memory=False, there=True), dtype)


@night
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_size(dtype: torch.dtype) -> None:
    for first in range(1, 301, 20):
        agree(lambda first=first: casts(tuple(range(first, first + 20)), dtype, torch.float32), dtype)  # type: ignore[misc]
    agree(lambda: casts((2047, 2048, 2049, 70_001), dtype, torch.float16), dtype)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _not_rounded(x, i, inside, number):  # type: ignore[no-untyped-def]
    tl.store(x + i, (number.to(tl.int32, bitcast=True) >> 16).to(tl.int16), inside)
    return number


@triton.jit
def _first_row(table, task, like, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.load(table + task * 8)
    return at.to(like.dtype), at - at


MUTANTS: list[tuple[str, Any, Any]] = [
    ("mark_if", never, lambda: test_wires_rests_and_sums(torch.float32, torch.float32)),
    ("load_sum", memory_left_out, lambda: test_wires_rests_and_sums(torch.float16, torch.float32)),
    ("load_number", words_as_numbers, lambda: test_wires_rests_and_sums(torch.bfloat16, torch.float32)),
    ("store_rounded", _not_rounded, lambda: test_wires_rests_and_sums(torch.bfloat16, torch.float32)),
    ("numbers_of", _first_row, lambda: test_rows_and_rests_in_place(torch.float32)),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.casts.triton.{name}", mutant)
    with pytest.raises(AssertionError):
        test()
