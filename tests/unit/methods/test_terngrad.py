from __future__ import annotations

import math

import pytest
import torch

from grace.compute import backends
from grace.methods.terngrad import TernGrad
from tests.unit.methods import quant_checks as check

SPEC = torch.tensor([[0.5, -1, 0.25, 0]])


def test_the_worked_example() -> None:
    with backends.using("reference"):  # the native kernel draws its own numbers
        wire = TernGrad().compress_(SPEC.clone(), check.Given([0.4, 0.9, 0.3, 0.1]), False)
    assert check.decoded(TernGrad(), wire, 4).tolist() == [[1, -1, 0, 0]]
    assert wire[0, 4:].tolist() == [2 + 0 * 3 + 1 * 9 + 1 * 27]  # digits 2, 0, 1, 1


def test_clipping_is_at_the_root_mean_square_about_zero() -> None:
    x = torch.cat((torch.ones(99), torch.tensor([-50.0]))).view(1, -1)
    limit = 2.5 * math.sqrt((99 + 2500) / 100)
    assert abs(float(check.applied(TernGrad(clip=2.5), x).min()) + limit) < 1e-5
    constant = torch.full((300,), 0.7)  # about the mean its deviation would be 0
    assert torch.equal(check.applied(TernGrad(clip=2.5), constant), constant)
    assert torch.equal(check.applied(TernGrad(clip=1.0), torch.tensor([-1.3])), torch.tensor([-1.3]))


def test_exact_for_one_magnitude() -> None:
    x = torch.tensor([0, 0.3, -0.3, 0.3, 0, 0, -0.3])
    assert torch.equal(check.applied(TernGrad(), x), x)


@pytest.mark.parametrize("compressor", [TernGrad(), TernGrad(bucket=10), TernGrad(bucket=1)])
def test_unbiased(compressor: TernGrad) -> None:
    check.assert_unbiased(compressor)


@pytest.mark.parametrize(
    "compressor",
    [TernGrad(shrink=True), TernGrad(bucket=10, shrink=True), TernGrad(clip=2.5, shrink=True), TernGrad(1.0, 50, True)],
)
def test_shrunk_it_contracts(compressor: TernGrad) -> None:
    check.assert_contracts(compressor, draws=128)


@pytest.mark.parametrize("compressor", [TernGrad(), TernGrad(clip=2.5), TernGrad(bucket=9)])
def test_flags_edges_and_payload(compressor: TernGrad) -> None:
    check.assert_flags(compressor, idempotent=not compressor.clip)
    check.assert_edges(compressor)
    check.assert_refuses_garbage(compressor)


def test_bits() -> None:
    assert 1.6 < check.bits_per_element("terngrad") < 1.64
    assert TernGrad(bucket=10**9).facts(10_000).payload == 2000 + 4


def test_exchanges() -> None:
    for knobs in ("", "clip=2.5", "communicator=scatterreduce"):
        check.assert_agrees_and_conserves(f"terngrad:{knobs}".rstrip(":"))
    check.assert_loses_nothing("terngrad:memory=residual")
    check.assert_loses_nothing("terngrad:clip=2.5,memory=residual")
    check.assert_agrees_on_nonfinite("terngrad:clip=2.5")


def test_knobs() -> None:
    check.assert_refuses_knobs(TernGrad, clip=[-1, 0.5, math.inf, math.nan], bucket=[0, 2.5], shrink=[0])
