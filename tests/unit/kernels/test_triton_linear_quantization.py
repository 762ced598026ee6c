"""Triton's fixed-point numbers in Triton's interpreter, against the specification, to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.errors import PayloadError
from grace.methods.lpc import LPC
from tests.unit.kernels import block_codecs as check
from tests.unit.kernels.test_linear_quantization import CODECS
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]


def codes(codec: LPC, n: int, rows: int = 2) -> None:
    x, memory = check.numbers(rows, n), check.numbers(rows, n, 1) / 4
    agree(lambda: check.results(codec, x, memory, shift=n % 4), (codec, n))


@pytest.mark.parametrize("codec", CODECS[::2], ids=repr)  # the others at night
def test_codes(codec: LPC) -> None:
    for n in (1, 70):
        codes(replace(codec, block=7), n)


@pytest.mark.parametrize("nearest", [False, True])
def test_ties_and_clips(nearest: bool) -> None:
    x = torch.tensor([[2.0, 0.5, 1.5, -0.5, -1.5, 3.0, -3.0, 2.5, -0.0, 0.0, 1e-41, 3e38]])
    for clip in (1.0, 0.5):
        agree(
            lambda clip=clip: [LPC(bits=3, block=8, clip=clip, nearest=nearest).encode_(x.clone(), check.RNG)[0]], clip
        )


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_what_is_not_finite_is_noticed(bad: float) -> None:
    memory = torch.zeros(1, 300)
    memory[0, 299] = bad
    with backends.using("triton"):
        assert LPC().encode_(torch.ones(1, 300), check.RNG, memory, torch.empty(1, 300))[1] is False


@pytest.mark.parametrize(("at", "value", "match"), [(12, 0, "which must be in"), (7, 0x7F, "'units'")])
def test_corrupted_wires_are_refused(at: int, value: int, match: str) -> None:
    codec = LPC(bits=8, block=100)
    wire = codec.encode_(torch.ones(1, 250), check.RNG)[0]
    wire[0, at] = value
    with backends.using("triton"), pytest.raises(PayloadError, match=match):
        codec.aggregate_([wire], torch.empty(1, 250), 1.0, check.RNG)


@night
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_codes_of_every_size(codec: LPC) -> None:
    for n in (*range(1, 301), 1023, 1024, 1025):
        codes(replace(codec, block=(7, 100, 512)[n % 3]), n)
    codes(replace(codec, block=5001), 9001, 5)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _down(y):  # type: ignore[no-untyped-def]
    return y.to(tl.int32)


# what is replaced, by what, and a test above that fails then
MUTANTS: list[tuple[str, Any, Any]] = [
    ("mark_if", never, lambda: test_corrupted_wires_are_refused(12, 0, "must be in")),
    ("round_half_even", _down, lambda: test_ties_and_clips(True)),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.linear_quantization.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
