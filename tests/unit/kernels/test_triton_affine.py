"""Triton's codes between the ends of blocks in Triton's interpreter, against the specification, to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.errors import PayloadError
from grace.methods.minmax import MinMax
from tests.unit.kernels import block_codecs as check
from tests.unit.kernels.test_affine import CODECS
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]


def codes(codec: MinMax, n: int, rows: int = 2) -> None:
    x, memory = check.numbers(rows, n), check.numbers(rows, n, 1) / 4
    agree(lambda: check.results(codec, x, memory, shift=n % 4), (codec, n))


@pytest.mark.parametrize("codec", CODECS[::2], ids=repr)  # the others at night
def test_codes(codec: MinMax) -> None:
    for n in (1, 70):
        codes(replace(codec, block=8), n)


@pytest.mark.parametrize("nearest", [False, True])
def test_ties_zeros_and_ends(nearest: bool) -> None:
    most = torch.finfo(torch.float32).max
    x = torch.tensor(
        [[-0.0, 0.0, 0.5, 1.5, 2.5, 3.5, 7.0, 0.49999, most, -most, 0.0, 1e-41, -0.0, -0.0, -2.0, -2.0, 5.0]]
    )
    for bits in (3, 8):
        for block in (2, 8):
            agree(
                lambda how=(bits, block, nearest): check.results(MinMax(*how), x, torch.zeros_like(x)),
                (bits, block),
            )


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_what_is_not_finite_is_noticed(bad: float) -> None:
    memory = torch.zeros(1, 300)
    memory[0, 299] = bad
    with backends.using("triton"):
        assert MinMax().encode_(torch.ones(1, 300), check.RNG, memory, torch.empty(1, 300))[1] is False


@pytest.mark.parametrize(("at", "value"), [(3, 0x7F), (15, 0xBF)])
def test_corrupted_wires_are_refused(at: int, value: int) -> None:
    codec = MinMax(bits=8, block=128)
    wire = codec.encode_(torch.arange(250.0)[None], check.RNG)[0]
    wire[0, at] = value
    with backends.using("triton"), pytest.raises(PayloadError, match="'ranges' must be finite"):
        codec.aggregate_([wire], torch.empty(1, 250), 1.0, check.RNG)


@night
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_codes_of_every_size(codec: MinMax) -> None:
    for n in (*range(1, 301), 1023, 1024, 1025):
        codes(replace(codec, block=(2, 128, 512)[n % 3]), n)
    codes(replace(codec, block=4096), 9001, 5)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _down(y):  # type: ignore[no-untyped-def]
    return y.to(tl.int32)


@triton.jit
def _with_outside(x, inside, BLOCK: tl.constexpr, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.min(tl.reshape(x, (SPAN // BLOCK, BLOCK)), 1)


@triton.jit
def _any(x):  # type: ignore[no-untyped-def]
    return x


# what is replaced, by what, and a test above that fails then
MUTANTS: list[tuple[str, Any, Any]] = [
    ("mark_if", never, lambda: test_corrupted_wires_are_refused(3, 0x7F)),
    ("round_half_even", _down, lambda: test_ties_zeros_and_ends(True)),
    ("least_of_blocks", _with_outside, lambda: test_ties_zeros_and_ends(True)),
    ("_within_range", _any, lambda: test_ties_zeros_and_ends(True)),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.affine.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
