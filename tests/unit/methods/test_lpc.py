from __future__ import annotations

import pytest
import torch

from grace.compute import backends
from grace.errors import ConfigurationError, PayloadError
from grace.methods.lpc import LPC
from tests.unit.methods import quant_checks as check


def test_the_worked_example() -> None:
    compressor = LPC(bits=3)
    with backends.using("reference"):  # the native kernel draws its own numbers
        wire = compressor.compress_(torch.tensor([[1, -0.6, 0.2, 0.05]]), check.Given([0.5, 0.5, 0.5, 0.1]), False)
    codes = [3 + 4, -2 + 4, 1 + 4, 1 + 4]
    assert wire[0, 4:].tolist() == list(sum(c << (3 * j) for j, c in enumerate(codes)).to_bytes(2, "little"))
    want = torch.tensor([[1, -2 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(check.decoded(compressor, wire, 4), want)


def test_clipping_saturates_and_uses_the_last_negative_code() -> None:
    x = torch.tensor([1.0, -1.0, 0.0])
    got = check.applied(LPC(bits=2, clip=0.5), x)  # unit 1/2, codes -2 to 1
    assert got.tolist() == [0.5, -1, 0]
    wide = check.applied(LPC(bits=8, clip=0.25), x)
    torch.testing.assert_close(wide, torch.tensor([0.25, -0.25 * 128 / 127, 0]))


def test_inside_the_range_the_variance_is_a_quarter_of_a_squared_unit() -> None:
    made = torch.Generator().manual_seed(0)
    x = torch.cat((torch.ones(1), torch.rand(30, generator=made) - 0.5)).expand(4096, 31).contiguous()
    compressor = LPC(bits=4, clip=0.6)
    got = check.applied(compressor, x)[:, 1:]
    unit = 0.6 / 7
    assert float((got - x[:, 1:]).square().mean(0).max()) <= unit**2 / 4 * 1.1
    assert float((got.mean(0) - x[0, 1:]).abs().max()) <= 6 * unit / 2 / 64


def test_exact_on_the_grid() -> None:
    for bits in range(2, 9):
        q = 2 ** (bits - 1) - 1
        x = torch.arange(-q, q + 1.0) * 0.25
        assert torch.equal(check.applied(LPC(bits=bits), x), x)
    assert torch.equal(check.applied(LPC(), torch.tensor([7.0])), torch.tensor([7.0]))


def test_to_the_nearest_it_says_the_same_each_time_and_contracts() -> None:
    x = torch.tensor([[1, -0.6, 0.2, 0.05]])
    got = check.decoded(
        LPC(bits=3, nearest=True), LPC(bits=3, nearest=True).compress_(x.clone(), check.Given([0.9] * 4), False), 4
    )
    torch.testing.assert_close(got, torch.tensor([[1, -2 / 3, 1 / 3, 0]]))
    assert LPC(nearest=True).with_memory() == LPC(nearest=True)
    for compressor in (LPC(bits=2, nearest=True, block=50), LPC(bits=8, nearest=True), LPC(nearest=True, block=7)):
        check.assert_contracts(compressor, draws=1)
    assert LPC(clip=0.5, nearest=True).facts(50).contraction is None
    with pytest.raises(ConfigurationError, match="shrink=true with nearest=true"):
        LPC(shrink=True, nearest=True)


@pytest.mark.parametrize("compressor", [LPC(), LPC(bits=2), LPC(bits=3, block=7), LPC(bits=8)])
def test_unbiased(compressor: LPC) -> None:
    check.assert_unbiased(compressor)


@pytest.mark.parametrize(
    "compressor", [LPC(bits=b, clip=c, block=50, shrink=True) for b in (2, 4) for c in (1.0, 0.6, 0.1)]
)
def test_shrunk_it_contracts(compressor: LPC) -> None:
    check.assert_contracts(compressor, draws=512)


@pytest.mark.parametrize("compressor", [LPC(), LPC(bits=2, block=9), LPC(bits=5, clip=0.5), LPC(clip=0.9, shrink=True)])
def test_flags_edges_and_payload(compressor: LPC) -> None:
    plain = compressor.clip == 1
    check.assert_flags(compressor, odd=plain, idempotent=plain)
    check.assert_edges(compressor)
    check.assert_refuses_garbage(compressor)


def test_the_last_negative_code_is_refused_where_no_sender_writes_it() -> None:
    wire = torch.tensor([[0, 0, 0x80, 0x3F, 0]], dtype=torch.uint8)
    with pytest.raises(PayloadError, match="codes"):
        check.decoded(LPC(), wire, 1)
    assert check.decoded(LPC(clip=0.5), wire, 1).tolist() == [[-8]]


def test_exchanges_and_bits() -> None:
    check.assert_agrees_and_conserves("lpc")
    check.assert_agrees_and_conserves("lpc:bits=3,clip=0.8,communicator=scatterreduce")
    check.assert_loses_nothing("lpc:bits=2,memory=residual")
    check.assert_loses_nothing("lpc:clip=0.5,memory=residual")
    check.assert_agrees_on_nonfinite("lpc")
    assert 4 < check.bits_per_element("lpc") < 4.04


def test_knobs() -> None:
    check.assert_refuses_knobs(LPC, shrink=[1], bits=[1, 9, 3.5, 4.0], clip=[0, 1.1, -1], block=[0, 0.1])
