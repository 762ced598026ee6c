from __future__ import annotations

import math

import torch

from grace.methods.onebit import OneBit
from tests.unit.methods import quant_checks as check


def test_the_worked_example() -> None:
    x = torch.tensor([-1.0, -3, 2, 4])
    wire = check.encoded(OneBit(), x.view(1, -1))
    assert wire[0, :8].view(torch.float32).tolist() == [-2, 3]
    assert wire[0, 8:].tolist() == [0x0C]
    got = check.applied(OneBit(), x)
    assert got.tolist() == [-2, -2, 3, 3]
    assert (x - got).tolist() == [1, -1, -1, 1]
    assert float((x - got).square().sum()) == 4  # 30 - 26


def test_it_is_an_orthogonal_projection_that_keeps_the_sum() -> None:
    for x in check.inputs(300).values():
        for compressor in (OneBit(), OneBit(tau=0.2), OneBit(group=7)):
            got = check.applied(compressor, x).double()
            assert abs(float((got * (x - got)).sum())) <= 1e-5 * float(x.square().sum())
            assert abs(float(got.sum() - x.double().sum())) <= 1e-5 * float(x.abs().sum())


def test_exact_for_two_values_constants_and_one_element() -> None:
    for x in (
        torch.tensor([-0.7, 0.3, 0.3, -0.7, 0.3]),
        torch.full((9,), -2.5),
        torch.full((9,), 0.1),
        torch.tensor([3.3]),
    ):
        assert torch.equal(check.applied(OneBit(), x), x)
    assert torch.equal(check.applied(OneBit(tau=1.0), torch.tensor([0.5, 2.0, 2.0])), torch.tensor([0.5, 2.0, 2.0]))


def test_all_negative_is_the_lower_side_and_zeros_are_the_upper() -> None:
    wire = check.encoded(OneBit(), torch.tensor([[-1.0, -3, -2]]))
    assert wire[0, :8].view(torch.float32).tolist() == [-2, 0]
    assert wire[0, 8:].tolist() == [0]
    assert check.applied(OneBit(), torch.tensor([0.0, 2, -1])).tolist() == [1, 1, -1]


def test_facts_flags_edges_and_payload() -> None:
    for compressor in (OneBit(), OneBit(group=7), OneBit(group=1), OneBit(tau=0.5)):
        check.assert_contracts(compressor)
        check.assert_flags(compressor, odd=False, homogeneous=compressor.tau == 0, idempotent=compressor.tau == 0)
        check.assert_edges(compressor)
        check.assert_refuses_garbage(compressor)
    x = torch.randn(300, generator=torch.Generator().manual_seed(0))  # no zeros
    assert torch.equal(check.applied(OneBit(), -x), -check.applied(OneBit(), x))
    assert 1 < check.bits_per_element("onebit:memory=none") < 1.07


def test_exchanges() -> None:
    check.assert_agrees_and_conserves("onebit:group=16")
    check.assert_agrees_and_conserves("onebit:group=16,communicator=scatterreduce")
    check.assert_loses_nothing("onebit:group=16")
    check.assert_loses_nothing("onebit:group=16,communicator=scatterreduce")
    check.assert_agrees_on_nonfinite("onebit")


def test_knobs() -> None:
    check.assert_refuses_knobs(OneBit, tau=[math.nan, math.inf], group=[0, 0.5])
