"""Triton's copies between the tensors of a bucket and their rooms, in its interpreter, against the specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.kernels.multi_tensor import (
    clear_many,
    fetch_many,
    finite_many,
    narrow_many,
    nonzero_many,
    pad_many,
    round_many,
    scale_many,
    sum_many,
    weigh_many,
    widen_many,
)
from grace.kernels.tensor_list import TensorList
from tests.unit.kernels.triton_checks import agree, interpreter, night
from tests.unit.kernels.triton_mutants import never, words_as_numbers

__all__ = ["interpreter"]

SIZES = (1, 5, 300, 1023, 1024, 1025)
MORE = (*range(1, 301, 13), 2047, 2049)
CPU = torch.device("cpu")


def numbers(sizes: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32, odd: bool = True) -> list[Tensor]:
    """Views ``[1, n]`` side by side of normal numbers, of ties, and of -0."""
    flat = torch.randn(sum(sizes) + 1, generator=torch.Generator().manual_seed(seed))
    flat[::3], flat[1::7] = -0.0, 1.00390625
    return [part[None] for part in flat.to(dtype)[int(odd) :].split([*sizes, int(not odd)])[: len(sizes)]]


def staged(sizes: tuple[int, ...], dtype: torch.dtype, odd: bool = True, big: float = 1.0) -> list[Tensor]:
    """Results of the operations on tensors and their rooms."""
    wide = tuple(n + n % 3 for n in sizes)
    many, rooms, out = TensorList(sizes, (), (), CPU), TensorList(wide, (), (), CPU), list[Tensor]()
    many.point(numbers(sizes, 0, dtype, odd), numbers(sizes, 1, odd=odd), numbers(sizes, 2, odd=odd))
    rooms.point(numbers(wide, 3, dtype), numbers(wide, 4))
    storage = rooms.xs[0]
    pad_many(storage, many, rooms)
    out += [x.clone() for x in (*rooms.xs, *(rooms.memories or ()))]
    means = numbers(wide, 5)
    means[-1][0, 0] *= big
    rooms.point(means, rooms.memories)
    out.append(narrow_many(torch.arange(len(sizes)) != 1, rooms, many))
    out += [*many.xs, *(many.rests or ())]
    wide_tensors = TensorList(sizes, (), (), CPU)
    wide_tensors.point([torch.empty(1, n + 1)[:, 1:] for n in sizes])
    fetch_many(storage, rooms, wide_tensors)
    out += [x.clone() for x in wide_tensors.xs]
    wide_tensors.xs[2][0, -1] = torch.nan
    out.append(finite_many(torch.arange(len(sizes)) != 1, wide_tensors))
    clear_many(torch.arange(len(sizes)) % 2 == 0, wide_tensors)
    return [*out, *wide_tensors.xs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_staging(dtype: torch.dtype) -> None:
    for odd in (False, True):
        agree(lambda odd=odd: staged(SIZES, dtype, odd), (dtype, odd))  # type: ignore[misc]


def summed(sizes: tuple[int, ...], dtype: torch.dtype, odd: bool) -> list[Tensor]:
    """Sums of tensors with memories, and without."""
    many, out = TensorList(sizes, (), (), CPU), list[Tensor]()
    for memories in (numbers(sizes, 1, odd=odd), None):
        many.point(numbers(sizes, 0, dtype, odd), memories, numbers(sizes, 2, odd=odd))
        sum_many(many.like, many)
        out += many.rests or ()
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_tensors_become_float32(dtype: torch.dtype) -> None:
    for odd in (False, True):
        agree(lambda odd=odd: summed(SIZES, dtype, odd), (dtype, odd))  # type: ignore[misc]


def scaled(sizes: tuple[int, ...], dtype: torch.dtype, odd: bool) -> list[Tensor]:
    """Tensors times factors, one of which is 1: there nothing is written."""
    many = TensorList(sizes, (), (), CPU)
    many.point(numbers(sizes, 0, dtype, odd))
    factors = torch.rand(len(sizes), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    factors[2] = 1.0
    scale_many(factors, many)
    return list(many.xs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tensors_are_scaled(dtype: torch.dtype) -> None:
    for odd in (False, True):
        agree(lambda odd=odd: scaled(SIZES, dtype, odd), (dtype, odd))  # type: ignore[misc]
    x, factor = torch.tensor([[3.3, -0.0, 1e30]]).to(dtype), 0.3
    many = TensorList((3,), (), (), CPU)
    many.point([x])
    want = x * factor  # as on the host
    with backends.using("triton"):
        scale_many(torch.tensor([factor], dtype=torch.float64), many)
    assert torch.equal(x, want)


def test_which_have_numbers_that_are_not_zero() -> None:
    """In any place, however small; -0 is a zero."""
    sizes = (1, 1025, 7, 1024, 2, 3, 5)
    many, xs = TensorList(sizes, (), (), CPU), [torch.zeros(1, n) for n in sizes]
    xs[1][0, 1024], xs[2][:], xs[3][0, 0], xs[4][0, 1], xs[5][0, 0] = 1e-45, -0.0, torch.nan, -torch.inf, 1.0
    many.point(xs)
    flags = torch.arange(len(sizes)) != 5
    agree(lambda: [nonzero_many(flags, many)], sizes)
    with backends.using("triton"):
        assert nonzero_many(flags, many).tolist() == [False, True, False, True, True, False, False]


def sixteen(sizes: tuple[int, ...], dtype: torch.dtype, odd: bool) -> list[Tensor]:
    """Sums of tensors, and what they become of it."""
    many, rounded = TensorList(sizes, (), (), CPU), TensorList(sizes, (), (), CPU)
    many.point(numbers(sizes, 0, odd=odd))
    message = torch.zeros(sum(sizes), dtype=dtype)
    rounded.point([place[None] for place in message.split(sizes)])
    many.xs[0][0, -1], many.xs[-1][0, 0] = torch.inf, 1e5  # which float16 does not hold
    out = [round_many(message, many, rounded, 1 / 3), message.clone()]
    rounded.xs[1][0, 0] = -torch.inf
    return [*out, widen_many(message, rounded, many), *many.xs]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_summed_in_sixteen_bits(dtype: torch.dtype) -> None:
    for odd in (False, True):
        agree(lambda odd=odd: sixteen(SIZES, dtype, odd), (dtype, odd))  # type: ignore[misc]


def weighed(dtype: torch.dtype, share: float, odd: bool, there: bool, once: bool = True) -> list[Tensor]:
    """Memories added with factors; ``there``: in the place of the tensors."""
    many, xs, memories = TensorList(SIZES, (), (), CPU), numbers(SIZES, 0, dtype, odd), numbers(SIZES, 1, odd=odd)
    memories[-1][0, :6] = torch.tensor([1e-41, -2e38, torch.inf, torch.nan, 0.0, -0.0])
    xs[-1][0, :2] = torch.tensor([6e4, 3e38]).to(dtype)
    outs = xs if there else numbers(SIZES, 2, odd=odd)
    many.point(xs, memories, outs)
    weigh_many(torch.tensor([0.7, 1.0, 1e-3, 3.3, 0.1, 2.5]), share, many, once=once)
    return [out.clone() for out in outs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weighed_sums(dtype: torch.dtype) -> None:
    for share in (1.0, 1.3):
        for odd in (False, True):
            for there in (False, True)[: 1 + (dtype is torch.float32)]:
                case = (dtype, share, odd, there)
                agree(lambda case=case: weighed(*case), case)  # type: ignore[misc]


def test_weighed_sums_of_rounded_products() -> None:
    agree(lambda: weighed(torch.float32, 1.0, True, True, False), "")


def test_a_weighed_sum_is_rounded_once() -> None:
    """Just below the middle of two float32, of which float64 is too coarse to tell it."""
    tiny = 2.0**-23
    for sign in (1, -1):
        many, out = TensorList((1,), (), (), CPU), torch.empty(1, 1)
        many.point([torch.full((1, 1), sign * (1 + tiny))], [torch.full((1, 1), sign * (1 - tiny))], [out])
        with backends.using("triton"):
            weigh_many(torch.tensor([2.0**-24 * (1 + tiny)]), 1.0, many)
        assert out.item() == sign * (1 + tiny)


@pytest.mark.parametrize(
    ("dtype", "big"), [(torch.bfloat16, 3.4e38), (torch.float16, 66e3), (torch.float16, torch.nan)]
)
def test_a_mean_that_is_too_large_is_noticed(dtype: torch.dtype, big: float) -> None:
    many, rooms = TensorList((3, 2), (), (), CPU), TensorList((3, 2), (), (), CPU)
    many.point([torch.ones(1, n, dtype=dtype) for n in (3, 2)])
    rooms.point([torch.ones(1, 3), torch.tensor([[1.0, big]])])
    with backends.using("triton"):
        assert narrow_many(torch.ones(2, dtype=torch.bool), rooms, many).tolist() == [True, False]


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_staging_of_many_sizes(dtype: torch.dtype) -> None:
    agree(lambda: staged(MORE, dtype), dtype)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _memory_as_rest(table, task, COLUMN: tl.constexpr, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(table + task * 8 + (1 if COLUMN == 2 else COLUMN)).to(tl.pointer_type(tl.float32))


@triton.jit
def _room_too_short(table, task):  # type: ignore[no-untyped-def]
    place, n = tl.load(table + task * 8 + 3), tl.load(table + task * 8 + 4)
    return place, tl.where(n > 1, n - 1, n)


@triton.jit
def _rounded_down(x):  # type: ignore[no-untyped-def]
    return x.to(tl.int32, bitcast=True) & 0x7FFF0000


@triton.jit
def _as_it_is(x, i, inside, number, full=False):  # type: ignore[no-untyped-def]
    tl.store(x + i, (number.to(tl.int32, bitcast=True) >> 16).to(tl.int16), inside)
    return number


@triton.jit
def _rounded_twice(x, factor, y):  # type: ignore[no-untyped-def]
    return (x.to(tl.float64) + factor.to(tl.float64) * y.to(tl.float64)).to(tl.float32)


@triton.jit
def _product_rounded_first(x, factor, y):  # type: ignore[no-untyped-def]
    return x + factor * y


@triton.jit
def _not_rounded(number):  # type: ignore[no-untyped-def]
    return number.to(tl.int32, bitcast=True) >> 16


@triton.jit
def _words_alone(x, e, i, inside, HAS_MEMORY: tl.constexpr, full=False):  # type: ignore[no-untyped-def]
    return tl.load(x + i, inside, 0).to(tl.float32)


MUTANTS: list[tuple[str, Any, Any]] = [
    ("store_rounded", _as_it_is, lambda: test_tensors_are_scaled(torch.bfloat16)),
    ("load_number", words_as_numbers, lambda: test_tensors_are_scaled(torch.bfloat16)),
    ("load_sum", _words_alone, lambda: test_narrow_tensors_become_float32(torch.bfloat16)),
    ("tensor_of", _memory_as_rest, lambda: test_staging(torch.float16)),
    ("wire_of", _room_too_short, lambda: test_staging(torch.float32)),
    ("magnitude", _rounded_down, lambda: test_staging(torch.bfloat16)),
    ("mark_if", never, lambda: test_staging(torch.float32)),
    ("store_rounded", _as_it_is, lambda: test_what_is_summed_in_sixteen_bits(torch.bfloat16)),
    ("load_number", words_as_numbers, lambda: test_what_is_summed_in_sixteen_bits(torch.bfloat16)),
    ("mark_if", never, lambda: test_what_is_summed_in_sixteen_bits(torch.float16)),
    ("add_product", _product_rounded_first, lambda: test_weighed_sums(torch.float32)),
    ("add_product", _rounded_twice, test_a_weighed_sum_is_rounded_once),
    ("_bfloat16_word", _not_rounded, lambda: test_weighed_sums(torch.bfloat16)),
    ("mark_if", never, test_which_have_numbers_that_are_not_zero),
    ("magnitude", _rounded_down, test_which_have_numbers_that_are_not_zero),
    ("mark_if", never, lambda: test_a_mean_that_is_too_large_is_noticed(torch.float16, 66e3)),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.multi_tensor.triton.{name}", mutant)
    with pytest.raises(AssertionError):
        test()
