from __future__ import annotations

import math

import pytest
import torch

import grace
from grace.errors import ConfigurationError
from grace.kernels.index_codes.codes import CODES, varies
from grace.methods import Qsparse, TopK

from . import sparse_checks as checks


def test_vector_of_the_specification() -> None:
    x = torch.tensor([0.1, -5, 3, -0.2, 4])
    (out,) = checks.run(grace.method("qsparse:ratio=0.4,memory=none"), [x])
    assert out.mean.tolist() == [0, -4.5, 0, 0, 4.5]
    torch.testing.assert_close(out.rest, torch.tensor([0.1, -0.5, 3, -0.2, -0.5]))


def test_raw_payloads_are_those_of_the_specification() -> None:
    n, k = 10_000, 100
    assert Qsparse(index="raw").facts(n).payload == 4 + math.ceil(k / 8) + k * 14 / 8
    assert Qsparse(quant=7, index="raw").facts(n).payload == 4 + k * 4 / 8 + k * 14 / 8
    assert Qsparse(quant=1, index="raw").facts(n).payload == 4 + k / 5 + k * 14 / 8
    assert 8 * Qsparse().facts(1_000_000).payload / 1_000_000 < 0.1


def test_sign_has_the_delta_of_the_formula() -> None:
    for name, x in checks.inputs():
        out = checks.decoded(Qsparse(0.05), x, checks.stream())
        v = checks.decoded(TopK(0.05), x, checks.stream()).double()
        delta = v.abs().sum() ** 2 / (50 * x.double().square().sum())
        error = (x - out).double().square().sum() / x.double().square().sum()
        assert float(error) == pytest.approx(float(1 - delta), abs=1e-6), name
        assert float(delta) >= 1 / 1000


def test_the_mean_over_the_rounding_is_topk() -> None:
    x = torch.randn(200, generator=checks.generator())
    v = checks.decoded(TopK(0.1), x, checks.stream()).double()
    variance = torch.where(v != 0, v.norm() ** 2 / 16, 0.0)  # a grid of step |v|_2 / 4: at most a quarter of its square
    draws = 256
    total = sum(checks.decoded(Qsparse(0.1, 4), x, checks.stream(seed)).double() for seed in range(draws))
    assert bool(((total / draws - v).abs() <= 6 * (variance / draws).sqrt() + 1e-5).all())


@pytest.mark.parametrize("compressor", [
    Qsparse(0.05), Qsparse(0.05, 16), Qsparse(0.05, 16, scaled=True), Qsparse(0.05, 1, scaled=True),
])  # fmt: skip
def test_contraction(compressor: Qsparse) -> None:
    checks.check_contraction(compressor, draws=40)


def test_bounds() -> None:
    n, k = 1000, 50
    for s in (1, 4, 16):
        beta = min(k / s**2, math.sqrt(k) / s)
        unscaled = Qsparse(0.05, s).facts(n).contraction
        assert unscaled == (pytest.approx((1 - beta) * k / n) if beta < 1 else None)
        assert Qsparse(0.05, s, scaled=True).facts(n).contraction == pytest.approx(k / (n * (1 + beta)))


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("quant", ["sign", 1, 7])
def test_all_codings(code: str, quant: str | int) -> None:
    compressor = Qsparse(0.1, quant, index=code)
    assert compressor.varies == varies(code) == (compressor.facts(1000).payload is None)
    checks.check_edges(compressor)
    checks.check_corruption(compressor, trials=60)


@pytest.mark.parametrize("quant", ["sign", 4])
@pytest.mark.parametrize("communicator", ["allgather", "scatterreduce"])
def test_exchange(quant: str | int, communicator: str) -> None:
    checks.check_exchange(grace.method("qsparse", ratio=0.1, quant=quant, communicator=communicator, memory="none"))
    checks.check_nothing_lost(grace.method("qsparse", ratio=0.1, quant=quant, communicator=communicator))


def test_knobs() -> None:
    for knobs in ({"ratio": 0}, {"quant": 0}, {"quant": "top"}, {"quant": True}, {"scaled": 1}, {"index": "x"}):
        with pytest.raises(ConfigurationError, match="qsparse"):
            Qsparse(**knobs)
    for spec in ("qsparse:quant=4,scaled=true,index=raw", "qsparse:ratio=0.1", "qsparse:quant=4,memory=none"):
        assert grace.spell(grace.method(spec)) == spec


def test_one_number_is_exact_and_so_not_random() -> None:
    x = torch.randn(100, generator=checks.generator())
    assert Qsparse(0.01, 4).facts(100).deterministic
    assert not Qsparse(0.02, 4).facts(100).deterministic
    top = checks.decoded(TopK(0.01), x, checks.stream())
    for seed in range(20):
        assert torch.equal(checks.decoded(Qsparse(0.01, 4), x, checks.stream(seed)), top)
