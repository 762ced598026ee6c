from __future__ import annotations

import math

import pytest
import torch

from grace.compute import backends
from grace.errors import PayloadError
from grace.methods.natural import Natural
from tests.unit.methods import quant_checks as check

ALL = [Natural(), Natural(bits=9), Natural(bits=4), Natural(bits=4, block=7), Natural(block=10)]


@pytest.mark.parametrize("compressor", [Natural(), Natural(bits=9), Natural(bits=4)])
def test_the_worked_example(compressor: Natural) -> None:
    rng = check.Given([0.3, 0.5, 0.9, 0.9])
    with backends.using("reference"):  # the native kernel draws its own numbers
        wire = compressor.compress_(torch.tensor([[2.75, -0.3, 1, 0]]), rng, False)
    assert check.decoded(compressor, wire, 4).tolist() == [[4, -0.25, 1, 0]]


@backends.using("reference")
def test_the_layout_of_codes() -> None:
    x = torch.tensor([[2.75, -0.3, 1, 0]])
    rng = check.Given([0.3, 0.5, 0.9, 0.9])
    eight = Natural().compress_(x.clone(), rng, False)[0].tolist()
    assert eight == [2, 126, 0x80 | 122, 124, 0]  # 2**2 is the top; -0.25 four octaves below
    four = Natural(bits=4).compress_(x.clone(), rng, False)[0].tolist()
    assert four == [2, 7 | (8 | 3) << 4, 5]
    nine = Natural(bits=9).compress_(x.clone(), rng, False)[0]
    codes = [129, 256 | 125, 127, 0]
    stream = sum(code << (9 * j) for j, code in enumerate(codes))
    assert nine.tolist() == list(stream.to_bytes(5, "little"))


@backends.using("reference")
def test_below_the_range_the_smallest_power_or_nothing() -> None:
    x = torch.tensor([[1.0, 2.0**-8, -(2.0**-8), 2.0**-6, 1.5 * 2.0**-7]])
    got = check.decoded(
        Natural(bits=4), Natural(bits=4).compress_(x, check.Given([0.5, 0.24, 0.26, 0.99, 0.7]), False), 5
    )
    assert got.tolist() == [[1, 2.0**-6, 0, 2.0**-6, 2.0**-6]]


def test_exact_for_zeros_and_powers_of_two() -> None:
    powers = torch.ldexp(torch.ones(126), torch.arange(126) - 60)
    assert torch.equal(check.applied(Natural(), powers), powers)
    everything = torch.ldexp(torch.ones(254, dtype=torch.float64), torch.arange(254) - 126).float()
    assert torch.equal(check.applied(Natural(bits=9), -everything), -everything)
    seven = torch.ldexp(torch.ones(7), torch.arange(7) - 60)
    assert torch.equal(check.applied(Natural(bits=4), seven), seven)
    assert torch.equal(check.applied(Natural(), torch.tensor([0.0, -4.0])), torch.tensor([0.0, -4.0]))


def test_the_largest_numbers_round_down_and_subnormal_ones_vanish() -> None:
    top = torch.finfo(torch.float32).max
    for compressor in ALL:
        assert check.applied(compressor, torch.tensor([top, -top])).tolist() == [2.0**127, -(2.0**127)]
        assert check.applied(compressor, torch.tensor([1e-39, -1e-45])).tolist() == [0, 0]
        assert check.applied(compressor, torch.tensor([2.0**-126])).tolist() == [2.0**-126]


def test_the_variance_is_an_eighth_at_four_thirds() -> None:
    x = torch.full((1, 40_000), 4 / 3)
    error = check.applied(Natural(bits=9), x) - x
    assert abs(float(error.square().mean() / x[0, 0] ** 2) - 1 / 8) < 0.003


@pytest.mark.parametrize("compressor", ALL)
def test_facts_flags_edges_and_payload(compressor: Natural) -> None:
    few = 4 if compressor.bits == 9 else 1  # which has no native kernels
    check.assert_unbiased(compressor, draws=1024 // few)
    check.assert_contracts(compressor, draws=256 // few)
    check.assert_flags(compressor)
    check.assert_edges(compressor)
    check.assert_refuses_garbage(compressor)


def test_payloads() -> None:
    assert Natural().facts(1000).payload == 1001
    assert Natural(bits=9).facts(1000).payload == 1125
    assert Natural(bits=4).facts(1000).payload == 508
    assert 8 < check.bits_per_element("natural") < 8.001
    assert 9 <= check.bits_per_element("natural:bits=9") < 9.001
    assert 4 < check.bits_per_element("natural:bits=4") < 4.07


def test_codes_that_no_sender_writes() -> None:
    for bad in (
        (Natural(), torch.tensor([[0, 127]], dtype=torch.uint8)),
        (Natural(bits=9), torch.tensor([[255, 0]]).byte()),
    ):
        with pytest.raises(PayloadError, match="codes"):
            check.decoded(*bad, 1)
    with pytest.raises(PayloadError, match="exponents"):
        check.decoded(Natural(), torch.tensor([[0x83, 1]], dtype=torch.uint8), 1)


def test_exchanges() -> None:
    for bits in (4, 8, 9):
        check.assert_agrees_and_conserves(f"natural:bits={bits}")
        check.assert_agrees_and_conserves(f"natural:bits={bits},communicator=scatterreduce")
        check.assert_loses_nothing(f"natural:bits={bits},memory=residual")
    check.assert_agrees_on_nonfinite("natural")


def test_knobs() -> None:
    check.assert_refuses_knobs(Natural, bits=[7, 0, 32, 8.0], block=[0, 1.5])
    with pytest.raises(ValueError, match="2048"):
        Natural(bits=4, block=4096)
    assert not math.isnan(Natural(bits=4, block=2048).facts(9999).contraction or math.nan)
