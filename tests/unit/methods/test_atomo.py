from __future__ import annotations

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import ConfigurationError
from grace.kernels.index_codes.codes import CODES
from grace.kernels.sampling.units import unit_of_budget
from grace.methods import Atomo

from . import sparse_checks as checks


def water_filling(x: Tensor, budget: float) -> Tensor:
    """The specification, word by word."""
    size = x.abs().double()
    p = torch.zeros_like(size)
    left, total = float(budget), float(size.sum())
    for i in size.argsort(descending=True, stable=True).tolist():
        if float(size[i]) == 0:
            break
        if float(size[i]) * left >= total * (1 - 1e-12):
            p[i], left, total = 1.0, left - 1, total - float(size[i])
        else:
            rest = p == 0
            p[rest] = size[rest] * left / total
            break
    return p


def test_vectors_of_the_specification() -> None:
    for x, p in (([6.0, 1, 1], [1, 0.5, 0.5]), ([4.0, -1, 1, 2], [1, 0.25, 0.25, 0.5])):
        size = torch.tensor(x).abs()
        assert (size / unit_of_budget(size, 2.0)).clamp_max(1).tolist() == p


@pytest.mark.parametrize("budget", [1.0, 7.5, 300.0, 1000.0])
def test_probabilities_are_those_of_water_filling(budget: float) -> None:
    for name, x in checks.inputs():
        p = (x.abs().double() / unit_of_budget(x.abs(), budget)).clamp_max(1)
        torch.testing.assert_close(p, water_filling(x, budget), rtol=1e-6, atol=1e-7)
        assert float(p.sum()) == pytest.approx(min(budget, int((x != 0).sum()))), name


def test_budgets_of_other_methods() -> None:
    x = torch.randn(200, generator=checks.generator())
    norm1, norm2, largest = x.abs().sum(), x.norm(), x.abs().max()
    qsgd = float(unit_of_budget(x.abs(), float(norm1 / norm2)))
    assert qsgd == pytest.approx(float(norm2), rel=1e-5)
    terngrad = float(unit_of_budget(x.abs(), float(norm1 / largest) * (1 - 1e-7)))
    assert terngrad == pytest.approx(float(largest), rel=1e-5)


@pytest.mark.parametrize("knobs", [{"ratio": 0.05}, {"budget": 3.5}])
def test_unbiased_with_the_variance_of_its_probabilities(knobs: dict) -> None:
    x = torch.randn(200, generator=checks.generator())
    x += x.sign()  # no probability that is too small for a normal approximation
    compressor = Atomo(**knobs)
    square = x.double().square()
    variance = square / water_filling(x, compressor._rule.count(200)).clamp_min(1e-300) - square
    assert float(variance.sum() / square.sum()) <= compressor.facts(200).variance
    checks.check_unbiased(compressor, x, variance.clamp_min(0))


def test_the_bound_on_the_variance_is_reached_by_a_constant() -> None:
    x = torch.full((1000,), 0.3)
    square = x.double().square()
    measured = (square / water_filling(x, 50.0)).sum() / square.sum() - 1
    assert float(measured) == pytest.approx(Atomo(budget=50.0).facts(1000).variance)


def test_exact_for_few_numbers() -> None:
    x = torch.zeros(1000)
    x[[3, 500, 999]] = torch.tensor([5.0, -3.0, 0.1])
    for seed in range(50):
        assert torch.equal(checks.decoded(Atomo(budget=3), x, checks.stream(seed)), x)
        assert checks.decoded(Atomo(), torch.tensor([-3.0]), checks.stream(seed)).tolist() == [-3.0]


@pytest.mark.parametrize("code", CODES)
def test_edges_and_corruption(code: str) -> None:
    for shrink in (False, True):
        checks.check_edges(Atomo(ratio=0.1, index=code, shrink=shrink))
    checks.check_corruption(Atomo(ratio=0.1, index=code))
    checks.check_contraction(Atomo(ratio=0.1, index=code, shrink=True))


def test_exchange() -> None:
    checks.check_exchange(grace.method("atomo", ratio=0.2))
    checks.check_nothing_lost(grace.method("atomo", ratio=0.2, memory="residual"))


def test_knobs() -> None:
    for knobs in ({"ratio": 0}, {"budget": 0.5}, {"index": "x"}, {"ratio": 0.1, "budget": 2}):
        with pytest.raises(ConfigurationError, match="atomo"):
            Atomo(**knobs)
