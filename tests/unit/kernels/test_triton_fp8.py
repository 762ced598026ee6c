"""Triton's floats of 8 bits in Triton's interpreter, against the specification, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.errors import PayloadError
from grace.kernels import E4M3, E5M2
from grace.methods.fp8 import FP8
from tests.unit.kernels import block_codecs as check
from tests.unit.kernels import test_fp8
from tests.unit.kernels.test_fp8 import CODECS
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]


def codes(codec: FP8, n: int, rows: int = 2) -> None:
    x, memory = check.numbers(rows, n), check.numbers(rows, n, 1) / 4
    agree(lambda: check.results(codec, x, memory, shift=n % 4), (codec, n))


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("n", [1, 70])
def test_codes(codec: FP8, n: int) -> None:
    codes(FP8(codec.fmt, 7, codec.stochastic), n)


@pytest.mark.parametrize("kind", [E4M3, E5M2])
def test_rounding_is_that_of_torch_around_every_middle(kind: object) -> None:
    test_fp8.test_rounding_is_that_of_torch_around_every_middle(kind, "triton")


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_what_is_not_finite_is_noticed(bad: float) -> None:
    memory = torch.zeros(1, 300)
    memory[0, 299] = bad
    with backends.using("triton"):
        assert FP8().encode_(torch.ones(1, 300), check.RNG, memory, torch.empty(1, 300))[1] is False


@pytest.mark.parametrize(("at", "value", "match"), [(12, 0x7F, "'codes' must be finite"), (7, 0x7F, "'scales'")])
def test_corrupted_wires_are_refused(at: int, value: int, match: str) -> None:
    wire = FP8(block=100).encode_(torch.ones(1, 250), check.RNG)[0]
    wire[0, at] = value
    with backends.using("triton"), pytest.raises(PayloadError, match=match):
        FP8(block=100).aggregate_([wire], torch.empty(1, 250), 1.0, check.RNG)


# ---- more of them, at night -----------------------------------------------------------------------------------------
@night
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_codes_of_every_size(codec: FP8) -> None:
    for n in (*range(1, 301), 1023, 1024, 1025):
        codes(FP8(codec.fmt, (7, 100, 512)[n % 3], codec.stochastic), n)
    codes(FP8(codec.fmt, 5001, codec.stochastic), 9001, 5)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _down(y):  # type: ignore[no-untyped-def]
    return y.to(tl.int32)


@triton.jit
def _same_lane(key0, key1, step, position):  # type: ignore[no-untyped-def]
    return (position - position).to(tl.int32)


# what is replaced, by what, and a test above that fails then
MUTANTS: list[tuple[str, Any, Any]] = [
    ("mark_if", never, lambda: test_corrupted_wires_are_refused(12, 0x7F, "codes")),
    ("round_half_even", _down, lambda: test_rounding_is_that_of_torch_around_every_middle(E4M3)),
    ("lanes_at", _same_lane, lambda: codes(FP8(stochastic=True), 30)),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.fp8.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
