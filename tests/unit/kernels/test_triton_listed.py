"""Triton kernels for listed numbers of a bucket, and for values on a grid, in Triton's interpreter, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import (
    PlaceLists,
    TensorList,
    decode_indices_many,
    encode_indices_many,
    encode_positive_many,
    put_listed_many,
    sum_listed_many,
    take_listed_many,
    take_topk_many,
)
from grace.kernels.index_codes.fixed.triton import code_of
from grace.kernels.packing import packed_bytes
from grace.kernels.sparse.triton import _listed, _load_of_grid
from grace.methods.qsparse import Qsparse
from grace.random import Stream
from tests.unit.kernels.native_checks import offset, same_bits
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import memory_left_out

__all__ = ["interpreter"]

SIZES, KEPT, CODES = (5, 70, 300), (2, 9, 40), ("raw", "elias-fano", "bitmap")


def bucket(
    sizes: tuple[int, ...], places: list[int], held: bool, dtype: torch.dtype = torch.float32, rows: int = 1
) -> TensorList:
    """Tensors that begin at odd places, of few magnitudes and many zeros."""
    made = torch.Generator().manual_seed(len(sizes))
    draw = [torch.randn(2, rows, n, generator=made).mul(3).trunc().div(3) for n in sizes]
    xs = [offset(x[0].to(dtype), (1 + t) % 4) for t, x in enumerate(draw)]
    memories = [offset(x[1], t % 3) for t, x in enumerate(draw)]
    streams = [Stream(3, "m", str(t), 1, 7) for t in range(len(sizes))]
    many = TensorList(sizes, places, streams, torch.device("cpu"), rows)
    many.point(xs, memories, [x.clone() for x in memories]) if held else many.point(xs)
    return many


def listed(held: bool, dtype: torch.dtype = torch.float32) -> None:
    """Numbers that are taken, their places, what the codes of the places say, and what becomes of sums."""
    lists = PlaceLists(KEPT, CODES, (1, 0, 3))

    def draw() -> list[Tensor]:
        coded, many = bucket(SIZES, [0, 9, 40], held, dtype), bucket(SIZES, [0, 8, 44], held, dtype)
        index, sent = torch.empty(51, dtype=torch.int64), torch.empty(51)
        finite = take_topk_many(index, sent, coded, KEPT)
        codes = torch.zeros(150, dtype=torch.uint8)
        encode_indices_many(codes, coded, lists, index)
        again, legal = decode_indices_many(torch.stack((codes, codes)), coded, lists)
        message = torch.empty(51)
        take_listed_many(message, index, many, lists)
        rests = [rest.clone() for rest in many.rests or ()]
        if held:
            put_listed_many(index, sent, many, lists)
            rests += [rest.clone() for rest in many.rests or ()]
        out = bucket(SIZES, [0, 8, 44], False)
        copied = message.clone()
        copied[0], copied[50] = -0.0, torch.inf
        return [
            index,
            sent,
            finite,
            codes,
            again,
            legal,
            message,
            *rests,
            sum_listed_many(copied, index, out, lists),
            *out.xs,
        ]

    agree(draw, (held, dtype))


@pytest.mark.parametrize(("held", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_listed_numbers(held: bool, dtype: torch.dtype) -> None:
    listed(held, dtype)


def compressed(
    codec: Qsparse, held: bool, dtype: torch.dtype = torch.float32, rows: int = 1, sizes: tuple[int, ...] = SIZES
) -> None:
    """Wires, rests, and the sum of three wires, of a codec of what is selected; the second tensor is not finite."""

    def draw() -> list[Tensor]:
        places, at = [], 1
        for n in sizes:
            for _ in range(rows):
                places.append(at)
                at += 3 + (codec.facts(n).payload or 0)
        many, spoiled = (bucket(sizes, places, held, dtype, rows) for _ in range(2))
        spoiled.xs[1][0, -1] = torch.nan
        wires = torch.zeros(3, at, dtype=torch.uint8)
        flags = [codec.encode_many_(wires[j], b, many.streams[0]) for j, b in enumerate((many, spoiled))]
        wires[2] = wires[0]
        out = bucket(sizes, places, False, torch.float32, rows)
        legal = codec.aggregate_many_(wires, out, 1 / 3, many.streams[0])
        return [*flags, wires, *(many.rests or ()), legal, *out.xs]

    agree(draw, (codec, held, dtype))


@pytest.mark.parametrize(
    ("codec", "held", "dtype"),
    [
        (Qsparse(ratio=0.3), True, torch.float32),
        (Qsparse(ratio=0.1, quant=3), True, torch.bfloat16),
        (Qsparse(ratio=0.6, quant=1, scaled=True), False, torch.float32),
    ],
    ids=repr,
)
def test_codes_of_what_is_selected(codec: Qsparse, held: bool, dtype: torch.dtype) -> None:
    compressed(codec, held, dtype)


@pytest.mark.parametrize(
    "codec", [Qsparse(0.3), Qsparse(0.3, 3), Qsparse(0.6, 1, True, "raw"), Qsparse(0.4, 200)], ids=repr
)
def test_they_are_those_of_one_tensor(codec: Qsparse) -> None:
    """The specification of a bucket says of each tensor what the method says of it alone, finite or not."""
    widths = [codec.facts(n).payload or 0 for n in SIZES]
    places = [sum(widths[:t]) for t in range(len(SIZES))]
    many, other = bucket(SIZES, places, True), bucket(SIZES, places, True)
    for both in (many, other):
        both.xs[1][0, -1] = torch.inf
    assert many.rests is not None
    assert other.memories is not None
    assert other.rests is not None
    wires, means = torch.zeros(2, sum(widths), dtype=torch.uint8), bucket(SIZES, places, False)
    finite = codec.encode_many_(wires[0], many, many.streams[0])
    wires[1] = wires[0]
    assert codec.aggregate_many_(wires, means, 0.5, many.streams[0]).all()
    for t, (x, place, width) in enumerate(zip(other.xs, places, widths, strict=True)):
        wire, fine = codec.encode_(x, other.streams[t], other.memories[t], other.rests[t])
        assert fine == finite[t]
        assert same_bits(wire[0], wires[0, place : place + width])
        assert not fine or same_bits(other.rests[t], many.rests[t])
        codec.aggregate_([wire, wire], x, 0.5, other.streams[t])
        assert same_bits(x, means.xs[t])


@night
@pytest.mark.parametrize("quant", ["sign", 1, 2, 60, 200])
def test_codes_of_all_kinds(quant: Any) -> None:
    for ratio in (0.001, 0.3, 1.0):
        for index in ("raw", "auto"):
            compressed(Qsparse(ratio, quant, True, index), True)
            compressed(Qsparse(ratio, quant, False, index), True, torch.float16, 3)  # type: ignore[arg-type]


def damaged(backend: str) -> list[list[bool]]:
    """Tensors that have legal wires, where a byte of the last one is another."""
    out = []
    with backends.using(backend), cpu_as_accelerator():
        for codec, at, value in ((Qsparse(0.1), 3, 0xFF), (Qsparse(0.1, 1), 4, 243), (Qsparse(0.1, 3), 4, 0xFF)):
            many = bucket((40, 50), [0, 60], False)
            wire = torch.zeros(120, dtype=torch.uint8)
            codec.encode_many_(wire, many, many.streams[0])
            for change in (0, value):
                wire[60 + at] = wire[60 + at] if change == 0 else change
                out.append(codec.aggregate_many_(wire[None], many, 1.0, many.streams[0]).tolist())
    return out


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_scales_and_codes_that_no_sender_writes(backend: str) -> None:
    assert damaged(backend) == [[True, True], [True, False]] * 3


def test_a_mean_that_is_tiny_is_no_mean() -> None:
    def draw() -> list[Tensor]:
        message, many = torch.zeros(20, dtype=torch.uint8), bucket((4, 9), [0, 5], True)
        assert many.memories is not None
        assert many.rests is not None
        many.point([torch.tensor([[1e-41, -0.0, 0.0, -1e-40]]), many.xs[1]], None, many.rests)
        return [encode_positive_many(message, many), message, *many.rests]

    agree(draw, "tiny")
    assert packed_bytes(9, 1) == 2


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _list_of_the_first(lists, task):  # type: ignore[no-untyped-def]
    return code_of(lists, 0)


@triton.jit
def _one_further(programs, kept, index, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    task, j, at, i, inside = _listed(programs, kept, index, TILE)
    return task, j, at + 1, i, inside & (j > 0)


@triton.jit
def _any_is_good(at, j, inside, k, BITS: tl.constexpr, COUNT: tl.constexpr, STEP: tl.constexpr, UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
    value, good = _load_of_grid(at, j, inside, k, BITS, COUNT, STEP, UNIT)
    return value, good | True


# module, what is replaced in it, by what, and a test above that fails then
MUTANTS: list[tuple[str, Any, Any]] = [
    ("index_codes.fixed.triton.code_of", _list_of_the_first, lambda: listed(False)),
    ("sparse.triton._listed", _one_further, lambda: listed(True)),
    ("selection.triton.candidates.load_sum", memory_left_out, lambda: listed(True)),
    ("sparse.triton._load_of_grid", _any_is_good, lambda: test_scales_and_codes_that_no_sender_writes("triton")),
    ("signs.triton.NONE", 1, test_a_mean_that_is_tiny_is_no_mean),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
