"""Triton kernels that pack, select and write lists, in Triton's interpreter, against the specification, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.errors import PayloadError
from grace.kernels import packing, selection, sparse
from grace.kernels.index_codes import fixed
from grace.kernels.index_codes.codes import CODES
from grace.kernels.index_codes.fixed import FIXED
from grace.kernels.triton.bit_streams import load_bits, load_field, pack_byte
from tests.unit.kernels import test_index_codes, test_selection, test_sparse
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.test_selection import inputs
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import memory_left_out, never

__all__ = ["interpreter"]

TILED = [300, 4097]  # one tile of selection, and two


def fields(bits: int, n: int) -> None:
    made = torch.Generator().manual_seed(n)
    values = torch.randint(0, 1 << bits, (2, n), generator=made)

    def draw() -> list[Tensor]:
        packed = packing.pack(values.to(torch.uint8) if bits < 8 else values, bits)
        wide = torch.cat([packed, packed], dim=1)[:, packed.shape[1] :]  # rows that do not follow each other
        return [packed, packing.unpack(wide, bits, n)]

    agree(draw, (bits, n))


@pytest.mark.parametrize("bits", [1, 3, 8, 11, 32])
def test_fields(bits: int) -> None:
    for n in (0, 1, 7, 1025):
        fields(bits, n)


@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 300])
def test_digits(n: int) -> None:
    digits = torch.randint(0, 3, (2, n), generator=torch.Generator().manual_seed(n))
    agree(lambda: [(packed := packing.pack_trits(digits)), packing.unpack_trits(packed, n)], n)


def selections(n: int, names: list[str], ks: set[int]) -> None:
    for i, name in enumerate(names):
        for k in ks:
            mode = ("plain", "in place", "copied", "memory")[(i + k) % 4]
            assert test_selection.agree(inputs(n)[name], k, mode, bool(k % 2), "triton", i), (n, name, k, mode)


@pytest.mark.parametrize("n", TILED)
@pytest.mark.parametrize("name", ["heavy tails", "few values", "zeros", "not finite"])
def test_the_largest(n: int, name: str) -> None:
    selections(n, [name], {1, n // 3})


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("bound", [0.0, 1.0, 1e300])
def test_what_reaches_a_bound(bound: float, strict: bool) -> None:
    reaching(300, "few values", bound, strict)
    reaching(4097, "not finite", bound, strict)


def reaching(n: int, name: str, bound: float, strict: bool) -> None:
    x = inputs(n)[name]

    def draw() -> list[Tensor]:
        row = offset(x, 1)
        rest = torch.empty_like(row)
        index, sent, finite = selection.take_at_least(
            row, bound, row.flip(0) * 0.5, rest, strict=strict, narrow=n == 300
        )
        alone = selection.select_at_least(x, bound, strict=strict)
        return [index.long(), alone, torch.tensor(finite), *([sent, rest] if finite else [])]

    agree(draw, (n, name))


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("code", FIXED)
def test_wires_of_pairs(code: str, narrow: bool) -> None:
    for n, k in ((300, 7),) if narrow else ((1, 1), (9001, 450)):
        pairs(n, k, code, narrow)


def pairs(n: int, k: int, code: str, narrow: bool) -> None:
    x, memory = test_sparse.numbers(n), test_sparse.numbers(n, 1)

    def draw() -> list[Tensor]:
        rest, out = torch.empty_like(x), offset(torch.ones(2, n), n % 3)
        wire, _ = sparse.encode_topk(x.clone(), sparse.TopKPairs(k, code, narrow), memory, rest)
        sparse.sum_topk([wire, wire, wire.clone()], out, sparse.TopKPairs(k, code, narrow), 0.3)
        whole = sparse.WirePart(x[0].view(torch.uint8), 0, 0, 0, sparse.DENSE)
        part = sparse.WirePart(wire[1], 0, k * (2 if narrow else 4), k, code)
        sparse.sum_sparse([part] if narrow else [part, whole, part], out[0], -0.7, narrow=narrow, add=True)
        return [wire, rest, out]

    agree(draw, (n, k, code))


@pytest.mark.parametrize("code", FIXED)
def test_damaged_lists_are_refused(code: str) -> None:
    n, k = 300, 9
    good = fixed.encode_indices(torch.arange(k)[None] * 33, n, code)
    answers: list[list[Any]] = []
    for which in ("reference", "triton"):
        answers.append([])
        for at in range(0, 8 * good.numel(), 5):
            bad = good.clone()
            bad[0, at // 8] ^= 1 << at % 8
            with backends.using(which):
                try:
                    answers[-1].append(fixed.decode_indices(bad, n, k, code).tolist())
                except PayloadError as error:
                    answers[-1].append(str(error))
    assert answers[0] == answers[1]
    assert any(isinstance(answer, str) for answer in answers[0])


def written(index: Tensor, n: int) -> str:
    """The codes of lists, or why there are none."""
    try:
        return str(fixed.encode_indices(index, n, "raw").tolist())
    except PayloadError as error:
        return str(error)


@pytest.mark.parametrize("b", [1, 3])
def test_lists_that_do_not_increase_in_range_are_refused(b: int) -> None:
    """The last of b lists has another number: at its ends, in the middle, and where tiles meet."""
    n, told = 2051, set[str]()
    for k in (1, 2, 3, 7, 1023, 1024, 1025, 2049):
        for at in {0, 1, k // 2, 1023, 1024, 1025, k - 1} & set(range(k)):
            for value in (-1, at, n):
                index = torch.arange(1, k + 1).repeat(b, 1)
                index[-1, at] = value
                with backends.using("reference"):
                    want = written(index, n)
                with backends.using("triton"):
                    assert written(index, n) == want, (k, at, value)
                told.add(want[:22])
    assert {"field 'indices' must i", "field 'indices' must b"} < told, "not increasing; not in range; and legal ones"


@pytest.mark.parametrize("code", CODES)
def test_lists_of_any_code_that_do_not_increase_in_range_are_refused(code: str) -> None:
    with backends.using("triton"):
        for wrong in ([3, 3], [4, 3], [-1, 3], [3, 10]):
            test_index_codes.test_lists_that_do_not_increase_in_range_are_refused(code, wrong)


def test_values_that_are_not_finite_are_refused() -> None:
    wire = sparse.encode_topk(torch.ones(1, 20), sparse.TopKPairs(3, "raw"), None, None)[0]
    wire[0, 10:12] = torch.tensor([0x80, 0x7F], dtype=torch.uint8)
    with backends.using("triton"), pytest.raises(PayloadError, match="'values' must be finite"):
        sparse.sum_topk([wire], torch.zeros(1, 20), sparse.TopKPairs(3, "raw"), 1.0)


# ---- more of them, at night -----------------------------------------------------------------------------------------
@night
@pytest.mark.parametrize("bits", range(1, 33))
def test_fields_of_every_size(bits: int) -> None:
    for n in (*range(1, 301, 1 if bits in (1, 5, 13) else 7), 1023, 1025):
        fields(bits, n)


@night
def test_digits_of_every_size() -> None:
    for n in range(1, 301):
        test_digits(n)


@night
def test_the_largest_of_every_size() -> None:
    names = list(inputs(1))
    for n in (*range(1, 301), 4095, 4096, 4097, 9001):
        selections(n, names if n % 10 == 1 else names[n % 4 :: 4], {1, n // 3 or 1, n})


@night
@pytest.mark.parametrize("strict", [False, True])
def test_what_reaches_a_bound_of_every_size(strict: bool) -> None:
    test_selection.check_at_least(["triton"], strict)


@night
@pytest.mark.parametrize("code", FIXED)
def test_lists_and_pairs_of_every_size(code: str) -> None:
    test_sparse.test_codes_of_every_size("triton", code)
    test_sparse.test_any_bytes_are_refused_or_a_legal_list("triton", code)
    for n in (*range(1, 301), 8191, 8192, 8193):
        pairs(n, max(1, n // 20), code, n % 2 == 0)


@night
@pytest.mark.parametrize("values", ["float32", "bfloat16"])
@pytest.mark.parametrize("code", test_sparse.CODES)
def test_whole_wires(code: str, values: str) -> None:
    test_sparse.test_wires_and_sums_agree("triton", values, code)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _cut_off(x):  # type: ignore[no-untyped-def]
    return (x.to(tl.int32, bitcast=True) & ~0xFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _byte_of_the_next(values, o, n, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    return pack_byte(values, o + 1, n, BITS)


@triton.jit
def _field_of_the_next(at, i, inside, width, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    return load_bits(at, i + 1, inside, width, BITS)


@triton.jit
def _nowhere(lists, bound, k, steps, inside):  # type: ignore[no-untyped-def]
    return bound - bound


@triton.jit
def _at_the_end(lists, bound, k, low, raised):  # type: ignore[no-untyped-def]
    return k


@triton.jit
def _first_field(at, bit, inside, width, bits):  # type: ignore[no-untyped-def]
    return load_field(at, bit - bit, inside, width, bits)


# module, what is replaced in it, by what, and a test above that fails then
MUTANTS: list[tuple[str, str, Any, Any]] = [
    ("packing.triton", "pack_byte", _byte_of_the_next, lambda: fields(11, 300)),
    ("packing.triton", "load_bits", _field_of_the_next, lambda: fields(11, 300)),
    ("selection.triton.candidates", "load_sum", memory_left_out, lambda: reaching(300, "few values", 1.0, False)),
    ("selection.triton.candidates", "mark_if", never, lambda: selections(300, ["not finite"], {5})),
    ("selection.triton", "nearest_bfloat16", _cut_off, lambda: pairs(300, 7, "raw", True)),
    ("index_codes.fixed.triton", "reaching", _at_the_end, lambda: pairs(9001, 450, "elias-fano", False)),
    ("index_codes.fixed.triton", "load_field", _first_field, lambda: pairs(9001, 450, "elias-fano", False)),
    ("index_codes.fixed.triton", "mark_if", never, lambda: test_damaged_lists_are_refused("raw")),
    ("sparse.triton", "first_of_each", _nowhere, lambda: pairs(9001, 450, "raw", False)),
    ("sparse.triton", "mark_if", never, test_values_that_are_not_finite_are_refused),
]


@pytest.mark.parametrize(("module", "name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(module: str, name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among them "a Triton kernel that leaves out the memory"."""
    monkeypatch.setattr(f"grace.kernels.{module}.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
