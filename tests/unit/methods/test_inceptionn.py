from __future__ import annotations

import pytest
import torch

from grace.methods.inceptionn import Inceptionn
from tests.unit.methods import quant_checks as check

SPEC = torch.tensor([0.001, 0.0005, -0.02, 0.3, 1.5])
ALL = [Inceptionn(p=p, relative=relative) for p in (6, 7, 10, 13, 14) for relative in (True, False)]


def test_the_worked_example() -> None:
    wire = check.encoded(Inceptionn(relative=False), SPEC.view(1, -1))[0]
    assert wire.shape[0] == 10
    assert wire[:2].tolist() == [0x91, 0x03]
    assert wire[2:4].tolist() == [4, 0x80 | 81]
    assert wire[4:6].tolist() == [9830 & 0xFF, 9830 >> 8]
    assert wire[6:].clone().view(torch.float32).tolist() == [1.5]
    want = [0.0009765625, 0, -0.019775390625, 0.29998779296875, 1.5]
    assert check.applied(Inceptionn(relative=False), SPEC).tolist() == want


def test_the_unit_is_the_next_power_of_two() -> None:
    x = SPEC * 0.03125  # the largest, 0.046875, lies below 2**-4
    wire = check.encoded(Inceptionn(), x.view(1, -1))[0]
    assert wire[0].item() == 256 - 4
    got = check.applied(Inceptionn(), x)
    assert bool(((got - x).abs() < 2.0**-14).all())
    alike = check.applied(Inceptionn(relative=False), x * 16) / 16
    assert torch.equal(got, alike)


@pytest.mark.parametrize("compressor", ALL)
def test_the_error_is_below_the_bound_and_towards_zero(compressor: Inceptionn) -> None:
    for x in check.inputs(300).values():
        got = check.applied(compressor, x)
        unit = 2.0 ** torch.log2(x.abs().max()).ceil() if compressor.relative and x.any() else 1.0
        assert bool(((got - x).abs() < 2.0**-compressor.p * unit).all())
        assert bool((got.abs() <= x.abs()).all())
        assert bool((got * x >= 0).all())


@pytest.mark.parametrize("compressor", ALL)
def test_flags_and_edges(compressor: Inceptionn) -> None:
    check.assert_flags(compressor, homogeneous=compressor.relative)
    check.assert_edges(compressor)
    check.assert_refuses_garbage(compressor)


def test_rows_of_different_width_tolerate_padding() -> None:
    x = torch.stack((SPEC, torch.zeros(5), SPEC * 1e-9))
    got = check.applied(Inceptionn(), x)
    for row, decoded in zip(x, got, strict=True):
        assert torch.equal(check.applied(Inceptionn(), row), decoded)


def test_exchanges_and_bits() -> None:
    check.assert_agrees_and_conserves("inceptionn")
    check.assert_agrees_and_conserves("inceptionn:p=6,communicator=scatterreduce")
    check.assert_agrees_and_conserves("inceptionn:communicator=broadcast")
    check.assert_loses_nothing("inceptionn:memory=residual")
    check.assert_agrees_on_nonfinite("inceptionn")
    assert 2 < check.bits_per_element("inceptionn:relative=false,p=6") < 34


def test_knobs() -> None:
    check.assert_refuses_knobs(Inceptionn, p=[5, 15, 24, 7.5, 10.0], relative=[1])
