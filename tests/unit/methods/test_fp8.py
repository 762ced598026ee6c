from __future__ import annotations

import pytest
import torch

from grace.methods.fp8 import FP8
from tests.unit.methods import quant_checks as check

ALL = [FP8(fmt=fmt, block=block) for fmt in ("e4m3", "e5m2") for block in (512, 7)]


def test_the_worked_example() -> None:
    x = torch.tensor([1.0, -0.5, 0.1])
    wire = check.encoded(FP8(), x.view(1, -1))
    assert wire[0, 4:].view(torch.float8_e4m3fn).float().tolist() == [448, -224, 44]
    torch.testing.assert_close(check.applied(FP8(), x), torch.tensor([1, -0.5, 0.0982143]), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("fmt", "relative", "least", "absolute"), [("e4m3", -4, -6, -10), ("e5m2", -3, -14, -17)])
def test_errors_are_as_small_as_declared(fmt: str, relative: int, least: int, absolute: int) -> None:
    largest = {"e4m3": 448, "e5m2": 57344}[fmt]
    x = torch.linspace(-1, 1, 100_001) ** 5
    x[0] = 1.0
    error = (check.applied(FP8(fmt=fmt, block=100_001), x) - x).abs()
    normal = x.abs() * largest >= 2.0**least
    assert bool((error[normal] <= 2.0**relative * x.abs()[normal] * 1.0001).all())
    assert bool((error[~normal] <= 2.0**absolute / largest * 1.0001).all())


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_stochastic_rounding(fmt: str) -> None:
    for block in (512, 7):
        check.assert_unbiased(FP8(fmt=fmt, block=block, stochastic=True))
        check.assert_contracts(FP8(fmt=fmt, block=block, stochastic=True), draws=256)
    check.assert_flags(FP8(fmt=fmt, stochastic=True))
    check.assert_edges(FP8(fmt=fmt, stochastic=True))
    grid = torch.arange(256, dtype=torch.uint8).view(getattr(torch, f"float8_{fmt}" + "fn" * (fmt == "e4m3"))).float()
    grid = grid[grid.isfinite()]
    assert torch.equal(check.applied(FP8(fmt=fmt, stochastic=True), grid), grid)
    assert torch.equal(check.applied(FP8(fmt=fmt), grid), grid)


@pytest.mark.parametrize("compressor", ALL)
def test_facts_flags_edges_and_payload(compressor: FP8) -> None:
    check.assert_contracts(compressor)
    check.assert_flags(compressor)
    check.assert_edges(compressor)
    check.assert_refuses_garbage(compressor)


def test_exchanges_and_bits() -> None:
    check.assert_agrees_and_conserves("fp8:block=16")
    check.assert_agrees_and_conserves("fp8:fmt=e5m2,stochastic=true,communicator=scatterreduce")
    check.assert_loses_nothing("fp8:memory=residual")
    check.assert_agrees_on_nonfinite("fp8")
    assert 8 < check.bits_per_element("fp8") < 8.07


def test_knobs() -> None:
    check.assert_refuses_knobs(FP8, fmt=["e3m4"], block=[0, 1.5], stochastic=[1])
