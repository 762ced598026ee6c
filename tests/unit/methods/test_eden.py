from __future__ import annotations

import pytest
import torch

from grace.compute import backends
from grace.errors import PayloadError
from grace.kernels.rotation import reference
from grace.methods.common.rotation import rotate
from grace.methods.drive import DRIVE
from grace.methods.eden import EDEN
from tests.unit.methods import quant_checks as check

DISTORTION = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}  # of a standard normal number: Max, 1960
ALL = [DRIVE(block=64), EDEN(block=64), EDEN(bits=1), EDEN(bits=2, block=16), EDEN(bits=3)]
MSE = [DRIVE(block=64, scale="mse"), *(EDEN(block=64, scale="mse", bits=bits) for bits in (1, 2, 3, 4))]


def test_the_worked_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "draw_signs", lambda rows, rng: torch.tensor([[1.0, -1, 1, 1]]))
    monkeypatch.setattr(backends, "current", backends.UNDECIDED)
    monkeypatch.setenv(backends.VARIABLE, "reference")
    x = torch.tensor([1.0, 2, 3, 4])  # y = [3, 1, -4, 2]
    wire = check.encoded(DRIVE(block=4), x.view(1, -1))
    torch.testing.assert_close(wire[0, :4].clone().view(torch.float32), torch.tensor([3 / 0.7978846]))
    assert wire[0, 4:].tolist() == [0b1011]
    torch.testing.assert_close(check.applied(DRIVE(block=4), x), torch.tensor([3.0, 3, 3, 3]))
    mse = check.encoded(DRIVE(block=4, scale="mse"), x.view(1, -1))
    torch.testing.assert_close(mse[0, :4].clone().view(torch.float32), torch.tensor([2.5 / 0.7978846]))


def test_codes_are_the_nearest_centroids() -> None:
    x = torch.randn(1, 1024, generator=torch.Generator().manual_seed(0))
    compressor = EDEN(bits=2)
    wire = check.encoded(compressor, x)
    y = rotate(x, check.peer().shared("EDEN"), 1024)[0] * 32 / x.norm()
    code = (y >= -0.9815988).long() + (y >= 0) + (y >= 0.9815988)
    assert torch.equal(wire[0, 4:], (code.view(-1, 4) << torch.tensor([0, 2, 4, 6])).sum(1).byte())


@pytest.mark.parametrize("compressor", ALL)
def test_the_product_with_x_is_exact(compressor: EDEN) -> None:
    for n in (5, 64, 300):
        for x in check.inputs(n).values():
            got = check.applied(compressor, x).double()
            square = float(x.double().square().sum())
            assert abs(float((got * x).sum()) - square) <= 1e-5 * square + 1e-12


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_errors_are_those_of_gaussian_numbers(bits: int) -> None:
    D = DISTORTION[bits]
    for label, slack in (("gaussian", 0.05), ("log-normal", 0.15)):  # the latter have a few that outweigh all others
        x = check.inputs(8192)[label]
        square = float(x.double().square().sum())
        for scale, want in (("unbiased", D / (1 - D)), ("mse", D)):
            error = check.applied(EDEN(bits=bits, block=8192, scale=scale), x) - x
            assert abs(float(error.square().sum()) / square / want - 1) < slack


@pytest.mark.parametrize("compressor", [DRIVE(block=256), EDEN(block=256, bits=2)])
def test_nearly_unbiased_over_rotations(compressor: EDEN) -> None:
    x = check.inputs(256)["log-normal"]
    got = torch.stack([check.applied(compressor, x, step) for step in range(200)])
    bias = got.mean(0) - x
    omega = {1: 0.571, 2: 0.133}[compressor.code_bits]
    assert float(bias.norm() / x.norm()) < 2 * (omega / 200) ** 0.5 + 0.02


def test_one_bit_is_exact_where_the_rotation_has_one_magnitude() -> None:
    one_hot = check.inputs(64)["one-hot"]
    torch.testing.assert_close(check.applied(DRIVE(block=64), one_hot), one_hot, rtol=1e-6, atol=1e-6)
    for bits in (1, 2, 3, 4):
        one = torch.tensor([-0.37])
        torch.testing.assert_close(check.applied(EDEN(bits=bits), one), one)


@pytest.mark.parametrize("compressor", MSE)
def test_for_least_error_it_contracts(compressor: EDEN) -> None:
    check.assert_contracts(compressor)


@pytest.mark.parametrize("compressor", [*ALL, MSE[0], MSE[2]])
def test_flags_edges_and_payload(compressor: EDEN) -> None:
    check.assert_flags(compressor, odd=False, idempotent=False)
    check.assert_edges(compressor, bounded=False)
    check.assert_refuses_garbage(compressor)


def test_a_scale_that_would_overflow_is_refused() -> None:
    wire = torch.tensor([[3.3e38]]).view(torch.uint8)
    with pytest.raises(PayloadError, match="scales"):
        check.decoded(EDEN(), torch.cat((wire, wire[:, :2]), 1), 4)


@pytest.mark.parametrize("compressor", ALL)
def test_huge_numbers_are_as_exact_as_others(compressor: EDEN) -> None:
    for n in (1, 20, 64):
        x = check.inputs(n)["gaussian"]
        x = x / x.abs().max()
        huge = check.applied(compressor, x * 2.0**126)
        torch.testing.assert_close(huge * 2.0**-126, check.applied(compressor, x), rtol=1e-5, atol=1e-6)


def test_exchanges_and_bits() -> None:
    for spec in ("drive:block=32", "eden:block=32,bits=3", "eden:block=16,communicator=scatterreduce"):
        check.assert_agrees_and_conserves(spec)
    check.assert_loses_nothing("drive:block=32,memory=residual")
    check.assert_loses_nothing("eden:bits=2,memory=residual,communicator=scatterreduce")
    check.assert_agrees_on_nonfinite("eden")
    assert 1.03 < check.bits_per_element("drive") < 1.033
    assert 4.03 < check.bits_per_element("eden") < 4.033


def test_knobs() -> None:
    check.assert_refuses_knobs(EDEN, bits=[0, 5, 2.0], block=[0, 3, 1 << 17], scale=["best"])
    check.assert_refuses_knobs(DRIVE, block=[12], scale=["best"])
