from __future__ import annotations

import pytest
import torch

import grace
from grace.compute import backends
from grace.errors import CompositionError, ConfigurationError
from grace.kernels.rotation import reference
from grace.kernels.rotation.reference import draw_signs
from grace.methods.common.rotation import rotate, rotate_back
from grace.methods.efsignsgd import EFSignSGD
from grace.methods.lpc import LPC
from grace.methods.none import Identity
from grace.methods.qsgd import QSGD
from grace.methods.rht import RHT
from grace.random import Stream
from grace.registry import spell
from tests.unit.methods import quant_checks as check

SHARED = Stream(1, "RHT", "x", None, 0)


def test_the_worked_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "draw_signs", lambda rows, rng: torch.tensor([[1.0, -1, 1, 1]]))
    monkeypatch.setattr(backends, "current", backends.UNDECIDED)
    monkeypatch.setenv(backends.VARIABLE, "reference")
    x = torch.tensor([[1.0, 2, 3, 4]])
    assert rotate(x, SHARED, 4).tolist() == [[3, 1, -4, 2]]
    assert torch.equal(rotate_back(rotate(x, SHARED, 4), SHARED, 4), x)


@pytest.mark.parametrize("n", [1, 15, 16, 100, 1024, 2077])
@pytest.mark.parametrize("rounds", [1, 2])
def test_it_keeps_the_norm_is_linear_and_comes_back(n: int, rounds: int) -> None:
    made = torch.Generator().manual_seed(n)
    x, z = torch.randn(2, n, generator=made), torch.randn(2, n, generator=made)
    y = rotate(x, SHARED, 256, rounds)
    torch.testing.assert_close(y.norm(dim=1), x.norm(dim=1), rtol=1e-6, atol=0)
    torch.testing.assert_close(rotate_back(y, SHARED, 256, rounds), x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rotate(x + 2 * z, SHARED, 256), rotate(x, SHARED, 256) + 2 * rotate(z, SHARED, 256))


def test_signs_are_fair_alike_on_all_rows_and_new_in_each_step() -> None:
    x = torch.zeros(3, 9999)
    first, again, later = (draw_signs(x, Stream(1, "RHT", "x", None, step)) for step in (0, 0, 1))
    assert first.shape == (1, 9999)
    assert set(first.unique().tolist()) == {-1, 1}
    assert torch.equal(first, again)
    for pair in (first, later, first * later):
        assert abs(float(pair.mean())) < 0.04


def test_heavy_tails_lose_their_largest_number() -> None:
    x = check.inputs(1024)["one-hot"].view(1, -1)
    torch.testing.assert_close(rotate(x, SHARED, 1024).abs(), torch.full((1, 1024), 3.7 / 32))
    heavy = check.inputs(4096)["log-normal"]
    for bits in (2, 4):
        plain = (check.applied(QSGD(bits=bits, bucket=1024), heavy) - heavy).square().sum()
        turned = (check.applied(RHT(QSGD(bits=bits, bucket=1024)), heavy) - heavy).square().sum()
        assert float(turned) < 0.5 * float(plain)


@pytest.mark.parametrize("compressor", [RHT(), RHT(QSGD(bits=2, bucket=64), block=16), RHT("lpc", block=32, rounds=2)])
def test_unbiased(compressor: RHT) -> None:
    check.assert_unbiased(compressor, draws=2048)


def test_facts_and_contraction_carry_over() -> None:
    assert RHT().facts(500).payload == QSGD().facts(500).payload
    assert RHT().facts(500).variance == QSGD().facts(500).variance
    for inner in (EFSignSGD(block=32), LPC(bits=2, shrink=True), Identity()):
        check.assert_contracts(RHT(inner, block=64), draws=256)


@pytest.mark.parametrize("compressor", [RHT(), RHT("u8bit", block=64), RHT("randomk:ratio=0.5")])
def test_edges(compressor: RHT) -> None:
    if compressor.inner != "randomk:ratio=0.5":
        check.assert_edges(compressor, bounded=False)
        check.assert_refuses_garbage(compressor)
    for _ in range(2):
        check.applied(compressor, torch.randn(3, 333, generator=torch.Generator().manual_seed(0)))


def test_names_and_compositions() -> None:
    assert grace.method("rht:inner=(qsgd:bits=2,bucket=64),block=128") == grace.Allgather(
        RHT("(qsgd:bits=2,bucket=64)", 128)
    )
    assert RHT("(qsgd:bits=2,bucket=64)").quantizer == QSGD(bits=2, bucket=64)
    for text in ("rht", "rht:inner=lpc", "rht:inner=(qsgd:bits=2,bucket=64),block=128"):
        assert spell(grace.method(text)) == text
    assert RHT().with_memory() == RHT(QSGD(shrink=True))
    assert RHT("u8bit").with_memory() == RHT("u8bit")
    for wrong in ("signsgd", "threshold", "inceptionn"):
        with pytest.raises(CompositionError, match="fixed size"):
            RHT(wrong)
    with pytest.raises(CompositionError, match="powersgd"):
        RHT("powersgd")
    with pytest.raises(ConfigurationError, match="qsdg"):
        RHT("qsdg")
    check.assert_refuses_knobs(RHT, block=[0, 1, 3, 100, 1 << 17, 64.0], rounds=[0, 3, 1.0])


def test_exchanges_and_bits() -> None:
    check.assert_agrees_and_conserves("rht:block=32")
    check.assert_agrees_and_conserves("rht:block=32,inner=u8bit,communicator=scatterreduce")
    check.assert_agrees_and_conserves(grace.Allgather(RHT("randomk:ratio=0.5", block=32)))
    check.assert_loses_nothing("rht:block=32,memory=residual")
    check.assert_agrees_on_nonfinite("rht")
    assert 4.1 < check.bits_per_element("rht") < 4.13
