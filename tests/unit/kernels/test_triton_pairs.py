"""Triton kernels that select, write and add up pairs of the tensors of a bucket, in Triton's interpreter, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.kernels.index_codes.fixed import FIXED
from grace.kernels.index_codes.fixed.triton import code_of
from grace.kernels.selection.triton.candidates import row_at
from grace.kernels.sparse import Pairs, encode_topk_many, sum_topk_many
from grace.kernels.tensor_list import TensorList
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]

SMALL = (5, 70, 300)
BORDERS = (1023, 1025, 4097, 1, 8193, 8)  # tiles of lists and of selection, and what a program adds up


def pairs_of(sizes: tuple[int, ...], ratio: float, narrow: bool, rows: int = 1) -> Pairs:
    """All codes in one bucket."""
    kept = tuple(max(1, int(ratio * n)) for n in sizes for _ in range(rows))
    return Pairs(kept, tuple(FIXED[t % 3] for t in range(len(sizes)) for _ in range(rows)), narrow)


def bucket(
    sizes: tuple[int, ...], pairs: Pairs, mode: str, dtype: torch.dtype = torch.float32, shift: int = 1, rows: int = 1
) -> tuple[TensorList, int]:
    """Tensors that begin at odd places, of few magnitudes, so that many are equal; and the bytes of the message."""
    made = torch.Generator().manual_seed(len(sizes) + shift)
    draw = [torch.randn(2, rows, n, generator=made).mul(3).round().div(3) for n in sizes]
    xs = [offset(x[0].to(dtype), (shift + t) % 4) for t, x in enumerate(draw)]
    memories = [offset(x[1], t % 3) for t, x in enumerate(draw)]
    places, at = [], shift
    for width in pairs.widths([n for n in sizes for _ in range(rows)]):
        places.append(at)
        at += width + 3
    many = TensorList(sizes, places, (), torch.device("cpu"), rows)
    if mode == "memory":
        many.point(xs, memories, [torch.full_like(memory, 7.0) for memory in memories])
    else:
        many.point(xs, None, xs if mode == "in place" else None)
    return many, at


def encoded(many: TensorList, size: int, pairs: Pairs) -> Tensor:
    message = torch.zeros(size, dtype=torch.uint8)
    assert encode_topk_many(message, many, pairs).all()
    return message


def exchange(
    sizes: tuple[int, ...], ratio: float, mode: str, narrow: bool = False, dtype: torch.dtype = torch.float32, rows: int = 1
) -> None:  # fmt: skip
    pairs = pairs_of(sizes, ratio, narrow, rows)

    def draw() -> list[Tensor]:
        (many, size), (other, _) = bucket(sizes, pairs, mode, dtype, 1, rows), bucket(sizes, pairs, "", dtype, 2, rows)
        wires = torch.stack([encoded(many, size, pairs), encoded(other, size + 1, pairs)[1:], torch.zeros(size)])
        rests = [rest.clone() for rest in many.rests or ()]
        outs = TensorList(sizes, many.places, (), many.device, rows)
        outs.point([torch.full((rows, n), 5.0) for n in sizes])
        wires[2] = wires[0]
        legal = sum_topk_many(wires.byte(), outs, pairs, 1 / 3)
        return [wires, *rests, legal, *outs.xs]

    agree(draw, (sizes, ratio, mode))


@pytest.mark.parametrize(
    ("mode", "narrow", "dtype"),
    [("memory", False, torch.bfloat16), ("in place", True, torch.float32)],
)
def test_pairs_of_a_bucket(mode: str, narrow: bool, dtype: torch.dtype) -> None:
    exchange(SMALL, 0.2, mode, narrow, dtype)


def test_what_is_not_finite_is_told_for_its_tensor() -> None:
    pairs = pairs_of(SMALL, 0.2, False)
    many, size = bucket(SMALL, pairs, "")
    many.xs[1][0, 69] = torch.nan
    with backends.using("triton"):
        assert encode_topk_many(torch.zeros(size, dtype=torch.uint8), many, pairs).tolist() == [True, False, True]


def damaged(bits: range) -> None:
    """The same wires are refused as by the specification, whatever bit of a row is another."""
    sizes = (40, 40, 40)
    pairs = pairs_of(sizes, 0.1, False)
    with cpu_as_accelerator():
        (many, size), answers = bucket(sizes, pairs, ""), list[list[bool]]()
        with backends.using("reference"):
            message = encoded(many, size, pairs)
        for which in ("reference", "triton"):
            with backends.using(which):
                for bit in bits:
                    wire = message.clone()
                    for place, width in zip(many.places, pairs.widths(sizes), strict=True):
                        wire[place + min(16 + bit // 8, width - 1)] ^= 1 << bit % 8
                    answers.append(sum_topk_many(wire[None], many, pairs, 1.0).tolist())
    half = len(answers) // 2
    assert answers[:half] == answers[half:]
    assert {legal for answer in answers for legal in answer} == {True, False}


def test_damaged_lists_are_told() -> None:
    damaged(range(3, 40, 10))


def test_more_wires_than_are_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.sparse.triton.AT_ONCE", 2)
    exchange((40,), 0.2, "")


# ---- more of them, at night -----------------------------------------------------------------------------------------
@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mode", ["memory", "in place", ""])
def test_pairs_of_many_sizes(mode: str, dtype: torch.dtype) -> None:
    dtype = torch.float32 if mode == "in place" else dtype
    for first in range(1, 301, 100):
        exchange(tuple(range(first, first + 100, 7)), 0.001 * first, mode, first == 101, dtype)
    exchange(BORDERS, 0.07, mode, False, dtype)
    exchange(BORDERS[::-1], 0.9, mode, True, dtype)
    exchange((1025, 70), 0.1, mode, False, dtype, rows=3)


@night
def test_damage_of_all_kinds() -> None:
    damaged(range(64))


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _list_of_the_first(lists, task):  # type: ignore[no-untyped-def]
    return code_of(lists, 0)


@triton.jit
def _where_the_first_are(kept, task, k, MANY):  # type: ignore[no-untyped-def]
    return tl.load(kept + 2 * task), tl.load(kept + 1)


@triton.jit
def _gradients_alone(table, programs, x, n, tiles, spans, HELD, MANY, EVEN):  # type: ignore[no-untyped-def]
    return row_at(table, programs, x, n, tiles, spans, 0, MANY, EVEN)


def _small() -> None:
    exchange((3, 41), 0.2, "memory")


# module, what is replaced in it, by what, and a test above that fails then. Of one tensor: test_triton_lists.py.
MUTANTS: list[tuple[str, Any, Any]] = [
    ("selection.triton.kept_of", _where_the_first_are, _small),
    ("selection.triton.candidates.row_at", _gradients_alone, _small),
    ("sparse.triton.code_of", _list_of_the_first, _small),
    ("index_codes.fixed.triton.code_of", _list_of_the_first, _small),
    ("index_codes.fixed.triton.mark_if", never, test_damaged_lists_are_told),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
