"""Triton's buckets between quantiles in Triton's interpreter, for the tensors of a bucket, against the specification, to the
bit.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.errors import PayloadError
from grace.kernels import TensorList, encode_quantiles_many, quantile_bytes, sum_quantiles, sum_quantiles_many
from grace.random import Stream
from tests.unit.kernels.test_quantiles import HALFWAY
from tests.unit.kernels.test_triton_lookup_table import views
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]
CPU = torch.device("cpu")


def told(
    q: int, seen: dict[int, int], zero_edge: bool, held: bool, dtype: torch.dtype = torch.float32, rows: int = 1
) -> list[Tensor]:
    """Wires, rests, and the sum of three wires, of tensors of so many numbers, of which so many are seen. Numbers repeat."""
    sizes = tuple(seen)
    places, at = [], 1
    for n in sizes:
        for _ in range(rows):
            places.append(at)
            at += quantile_bytes(n, q) + 2
    streams = [Stream(5, "Sketch", str(n), 1, 0) for n in sizes]
    many, out = (TensorList(sizes, places, streams, CPU, rows) for _ in range(2))
    parts = [[x.view(rows, -1) for x in views(tuple(rows * n for n in sizes), seed, dtype)] for seed in range(3)]
    for x in parts[0]:
        x[:, 1::3] = x[:, :1]
    memories, rests = ([x.float() for x in part] if held else None for part in parts[1:])
    many.point(parts[0], memories, rests)
    message = torch.zeros(at, dtype=torch.uint8)
    finite = encode_quantiles_many(message, many, q, zero_edge, tuple(m for m in seen.values() for _ in range(rows)), 7)
    sums = [torch.ones(rows, n) for n in sizes]
    out.point(sums)
    legal = sum_quantiles_many(message.repeat(3, 1), out, q, 0.3)
    return [message, finite, legal, *(rests or ()), *sums]


CASES: list[tuple[Any, ...]] = [
    (16, {40: 40, 1: 1, 301: 301}, True, True, torch.bfloat16),
    (5, {40: 9, 6: 6, 33: 32}, True, False, torch.float16),
    (2, {9: 9, 30: 11}, False, True, torch.float32, 2),
    (2, {2300: 40}, False, True),  # more in a bucket than are added side by side
]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_wires_of_a_bucket(case: tuple[Any, ...]) -> None:
    agree(lambda: told(*case), case)


def test_numbers_are_added_in_order() -> None:
    """The order of addition shows: of two large ones, which come first, one cancels the other, and the third is left; else it
    would be lost.
    """
    many = TensorList((6,), (0,), [Stream(1, "Sketch", "a", 0, 0)], CPU)

    def draw() -> list[Tensor]:
        message = torch.zeros(quantile_bytes(6, 2), dtype=torch.uint8)
        many.point([torch.tensor([[2.0**60, -(2.0**60), 1.0, *[2.0**61] * 3]])])
        encode_quantiles_many(message, many, 2, False, (6,), 0)
        assert message[:4].view(torch.float32).tolist() == [pytest.approx(1 / 3)]
        return [message]

    agree(draw, "order")


def test_means_that_depend_on_the_order_have_that_of_the_numbers() -> None:
    many = TensorList(
        [17] * 16, [quantile_bytes(17, 2) * row for row in range(16)], [Stream(1, "Sketch", "a", 0, 0)] * 16, CPU
    )
    made = torch.Generator().manual_seed(2)
    x = [torch.cat((HALFWAY, torch.full((9,), 9.0)))[torch.randperm(17, generator=made)][None] for _ in range(16)]

    def draw() -> list[Tensor]:
        message = torch.zeros(16 * quantile_bytes(17, 2), dtype=torch.uint8)
        many.point(x)
        encode_quantiles_many(message, many, 2, False, (17,) * 16, 0)
        assert {1.0, 1 + 2.0**-23} == set(
            message.view(16, -1)[:, :4].contiguous().view(torch.float32).flatten().tolist()
        )
        return [message]

    agree(draw, "border")


@pytest.mark.parametrize(("at", "value"), [(20, 0xFF), (3, 0x7F)])
def test_wires_that_no_sender_writes(at: int, value: int) -> None:
    wire = torch.zeros(1, quantile_bytes(8, 5), dtype=torch.uint8)
    wire[0, 2] = 0x80
    with backends.using("triton"):
        sum_quantiles([wire, wire], torch.empty(1, 8), 5, 0.5)
        wire[0, at] = value
        with pytest.raises(PayloadError, match="field 'codes'" if at == 20 else "field 'means'"):
            sum_quantiles([wire], torch.empty(1, 8), 5, 0.5)


@night
@pytest.mark.parametrize("q", [3, 8, 16, 100, 256])
def test_wires_of_many_sizes(q: int) -> None:
    for seen in ({1024: 1024, 1025: 1025}, {4500: 50, 2: 2, 300: 299}, {1: 1, 2: 1, 3: 2, 4: 4}):
        for held, dtype in ((True, torch.float16), (False, torch.float32)):
            agree(lambda s=seen, h=held, d=dtype: told(q, s, q != 16, h, d), (q, seen))  # type: ignore[misc]


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _as_words(word):  # type: ignore[no-untyped-def]
    return word


@triton.jit
def _none_are(lists, bound, k, low, raised):  # type: ignore[no-untyped-def]
    return k - k


@triton.jit
def _next_number(table, row, like, i, inside, HELD, EVEN):  # type: ignore[no-untyped-def]
    return tl.load(tl.load(table + 8 * row).to(like.dtype) + i, inside, 0.0).to(tl.float32) * 2


@triton.jit
def _nothing(size, count, LANES):  # type: ignore[no-untyped-def]
    return size * 0


def _backwards(x: Tensor, *, stable: bool = False) -> Any:
    """Equal numbers in the other order."""
    there = x.flip(0).sort(stable=True)
    return (there[0], len(x) - 1 - there[1]) if stable else there


MUTANTS: list[tuple[str, Any, Any]] = [
    ("grace.kernels.quantiles.triton.ascending_word", _as_words, lambda: test_wires_of_a_bucket(CASES[2])),
    ("grace.kernels.quantiles.triton.reaching", _none_are, lambda: test_wires_of_a_bucket(CASES[0])),
    ("grace.kernels.quantiles.triton._number_at", _next_number, lambda: test_wires_of_a_bucket(CASES[1])),
    ("grace.kernels.quantiles.triton.mark_if", never, lambda: test_wires_that_no_sender_writes(3, 0x7F)),
    ("torch.sort", _backwards, test_numbers_are_added_in_order),
    ("grace.kernels.quantiles.triton.slack", _nothing, test_means_that_depend_on_the_order_have_that_of_the_numbers),
]


@pytest.mark.parametrize(("where", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(where: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, mutant)
    with pytest.raises(CAUGHT):
        test()
