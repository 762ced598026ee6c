"""Triton kernels for wires of a front and codes, in Triton's interpreter, against the specification."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import choose_coded_many, sum_counted_many
from grace.kernels.index_codes.codes import most
from grace.kernels.sparse_codes import BIAS, SPAN, Codes, Powers, Quanta
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse import Chosen, CountedCode, CountedPlaces
from tests.unit.kernels.coded_buckets import compare_damaged
from tests.unit.kernels.test_triton_variable_sparse import SIZES, bucket, messages
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night

__all__ = ["interpreter"]

TAU = ((1.0, 0.1, 0.4), (0.3, 0.0, 2.0))  # of each worker; nothing of a tensor whose front is 0
EXPONENTS = (1, -123)  # of the largest: its lowest powers have no leading bit


def quanta(rank: int, many: TensorList, code: CountedCode) -> Chosen:
    many.xs[0].view(-1)[rank] = (1e-41, math.inf)[rank]
    tau = torch.tensor(TAU[rank][: len(many)])
    return choose_coded_many(tau.view(torch.int32), tau.double(), many, code, strict=True)


def powers(rank: int, many: TensorList, code: CountedCode) -> Chosen:
    exponent = EXPONENTS[rank]
    for x, memory in zip(many.xs, many.memories or (), strict=True):
        n = x.numel()
        memory.zero_()
        x.view(-1)[:] = torch.ldexp(torch.linspace(-2, 2, n), exponent - torch.arange(n) % 11)
    fronts = torch.full((len(many),), exponent + BIAS, dtype=torch.int32)
    fronts[2] = 0
    bounds = torch.full((len(many),), 0.75 * 2.0 ** (exponent - SPAN), dtype=torch.float64)
    return choose_coded_many(fronts, bounds, many, code, strict=False)


def wires_and_sums(codes: Codes, index: str = "auto", sizes: tuple[int, ...] = SIZES) -> None:
    code, choose = CountedCode(index, False, codes), quanta if isinstance(codes, Quanta) else powers

    def draw() -> list[Tensor]:
        with cpu_as_accelerator():
            buckets, places, rows, finite = messages(sizes, code, choose)
            flags = [flag for flags in finite for flag in flags]
            rests = [rest for many in buckets for rest in many.rests or ()]
            legal = sum_counted_many(rows, buckets[0], code, places, 0.3)
        settled = [rest for flag, rest in zip(flags, rests, strict=True) if flag]
        return [rows, *finite, *settled, legal, *buckets[0].xs]

    agree(draw, (codes, index, sizes))


@night
@pytest.mark.parametrize(
    ("codes", "index"),
    [(Quanta(1), "auto"), (Quanta(5), "raw"), (Quanta(65536), "rice"), (Powers(), "auto"), (Powers(), "delta")],
)
def test_wires_and_their_sums(codes: Codes, index: str) -> None:
    wires_and_sums(codes, index)


@night
@pytest.mark.parametrize("index", ["raw", "bitmap", "elias-fano", "delta", "rice", "auto"])
@pytest.mark.parametrize("codes", [Quanta(1), Quanta(9), Quanta(65536), Powers()], ids=str)
def test_wires_of_several_tiles(codes: Codes, index: str) -> None:
    wires_and_sums(codes, index, (4097, 300, 9001))


def damaged(codes: Codes, index: str, steps: range) -> set[bool]:
    code, choose = CountedCode(index, False, codes), quanta if isinstance(codes, Quanta) else powers
    with cpu_as_accelerator(), backends.using("reference"):
        _, places, rows, _ = messages(SIZES, code, choose)
    add_up = functools.partial(sum_counted_many, code=code, places=places, weight=1.0)
    return compare_damaged(rows, places.begins[0] + 4, steps, lambda: bucket(SIZES, 0), add_up)


@night
@pytest.mark.parametrize("codes", [Quanta(3), Powers()], ids=str)
def test_damaged_wires_are_told(codes: Codes) -> None:
    assert damaged(codes, "auto", range(31, 90, 29)) == {True, False}


@night
@pytest.mark.parametrize("codes", [Quanta(3), Powers()], ids=str)
@pytest.mark.parametrize("index", ["raw", "bitmap", "elias-fano", "rice"])
def test_damaged_wires_of_all_kinds(codes: Codes, index: str) -> None:
    assert damaged(codes, index, range(2, 112, 7)) == {True, False}


def fronts_alone() -> None:
    """Fronts are checked where nothing follows them."""
    for codes, choose, t, byte, value in ((Quanta(3), quanta, 1, 11, 0xFF), (Powers(), powers, 2, 8, 255)):
        code = CountedCode("auto", False, codes)
        with backends.using("triton"), cpu_as_accelerator():
            buckets, places, rows, _ = messages(SIZES, code, choose)
            rows[1, places.begins[t] + byte] = value
            legal = sum_counted_many(rows, buckets[0], code, places, 1.0)
        assert legal.tolist() == [other != t for other in range(3)]


@night
def test_fronts_are_told_where_nothing_follows_them() -> None:
    fronts_alone()


@pytest.mark.parametrize("codes", [Quanta(1), Quanta(65536), Powers()], ids=str)
def test_there_is_room_for_what_is_sent(codes: Codes) -> None:
    for index in ("raw", "bitmap", "elias-fano", "auto", "rice", "delta"):
        code = CountedCode(index, False, codes)
        for n in (1, 2, 7, 64, 301, 70_000):
            for k in {0, 1, 2, n // 100, n // 9, n // 2, n - 1, n}:
                width = 4 + code.bytes_of(k) + most(n, k, index) if k <= n else 0
                places = CountedPlaces([[width]], 0, [n], code) if k <= n else None
                assert places is None or index in ("rice", "delta") or k <= places.rooms[0, 0] <= n, (index, n, k)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _upside_down(code, word, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    return word.to(tl.float32, bitcast=True) * (1.0 - (code & 1).to(tl.float32) * 2.0)


@triton.jit
def _the_lowest(p, word, KIND: tl.constexpr, MOST: tl.constexpr):  # type: ignore[no-untyped-def]
    return (p > 0).to(tl.int32) + word * 0


@triton.jit
def _always_good(at, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(at).to(tl.int32) * 0 + 1, tl.load(at) >= 0


@triton.jit
def _no_front(KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    return 0


MUTANTS: list[tuple[str, str, Any, Any]] = [
    ("selection", "number_of_code", _upside_down, lambda: wires_and_sums(Quanta(5))),
    ("selection", "code_of_number", _the_lowest, lambda: wires_and_sums(Powers(), "raw")),
    ("sparse_codes", "number_of_code", _upside_down, lambda: wires_and_sums(Quanta(1))),
    ("sparse_codes", "front_at", _always_good, lambda: wires_and_sums(Powers())),
    ("sparse", "front_bytes_of", _no_front, lambda: wires_and_sums(Quanta(1))),
    ("variable_sparse", "front_at", _always_good, fronts_alone),
    ("variable_sparse", "values_bytes", lambda *_: 0, lambda: wires_and_sums(Powers())),
]


@pytest.mark.parametrize(
    ("family", "name", "mutant", "test"),
    [case if case[1] == "values_bytes" else pytest.param(*case, marks=night) for case in MUTANTS],
)
def test_mutants_are_caught(family: str, name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.{family}.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
