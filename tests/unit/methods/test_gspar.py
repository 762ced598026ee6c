"""GSpar, and the sampling that it shares with Atomo."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import ConfigurationError
from grace.kernels.index_codes.codes import CODES
from grace.kernels.sampling.units import unit_of_count, unit_of_variance
from grace.kernels.sampling.wire import uniform32
from grace.methods import GSpar
from grace.random import Stream

from . import sparse_checks as checks


@dataclass(frozen=True)
class Given:
    """A stream that gives these uniform numbers."""

    u: tuple[float, ...]

    def words(self, groups: int, device: object) -> Tensor:
        words = torch.tensor([round(u * 2**32) for u in (*self.u, 0.5)][: 2 * groups])
        return words.where(words < 1 << 31, words - (1 << 32)).to(torch.int32).view(groups, 2)


def probabilities(x: Tensor, count: float, rounds: int = 100) -> Tensor:
    """The paper's algorithm 3, word by word, in float64."""
    n, size = x.numel(), x.abs().double()
    p = (count * size / size.sum()).clamp_max(1)
    for _ in range(rounds):
        active = p < 1
        c = (count - n + active.sum()) / p[active].sum()
        if not 1 < c < float("inf"):  # infinite: all that is left is zero
            break
        p = torch.where(active, (c * p).clamp_max(1), p)
    return p


def test_vector_of_the_specification() -> None:
    x = torch.tensor([4.0, -1, 1, 2])
    assert 1 / unit_of_count(x.abs(), 2.0, 4) == 0.25
    assert probabilities(x, 2.0).tolist() == [1, 0.25, 0.25, 0.5]
    rows = torch.cat([x, torch.zeros(60)])[None]  # long enough not to be sent dense
    given = Given((0.99, 0.2, 0.9, 0.6) + (0.5,) * 60)
    compressor = GSpar(ratio=2 / 64, index="raw")
    wire = compressor.compress_(rows.clone(), given, False)
    out = torch.zeros_like(rows)
    compressor.decompress_add_(wire, out, 1.0, given)
    assert out[0, :4].tolist() == [4, -4, 0, 0]
    assert not bool(out[0, 4:].any())
    assert wire.shape[1] == 8 + 4 + 4 + 1 + 1 + 1  # counts, value, unit, sign, two lists of one 6-bit index each


@pytest.mark.parametrize("rounds", [0, 2, 4, 50])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0])
def test_probabilities_are_the_papers(rounds: int, ratio: float) -> None:
    for _, x in checks.inputs():
        unit = unit_of_count(x.abs(), max(1.0, ratio * 1000), rounds)
        p = (x.abs().double() / unit).clamp_max(1)
        torch.testing.assert_close(p, probabilities(x, max(1.0, ratio * 1000), rounds), rtol=1e-6, atol=1e-9)
        assert float(p.sum()) <= max(1.0, ratio * 1000) * (1 + 1e-6)


@pytest.mark.parametrize(
    "knobs", [{"ratio": 0.05}, {"ratio": 0.05, "index": "rice"}, {"epsilon": 2.0}, {"ratio": 0.02, "rounds": 0}]
)
def test_unbiased_with_the_variance_of_its_probabilities(knobs: dict) -> None:
    x = torch.randn(200, generator=checks.generator())
    x += x.sign()  # no probability that is too small for a normal approximation
    compressor = GSpar(**knobs)
    unit = compressor._rule.unit(x.abs())
    square = x.double().square()
    variance = square / (x.abs().double() / unit).clamp(1e-300, 1) - square
    assert float(variance.sum() / square.sum()) <= compressor.facts(200).variance * (1 + 1e-9)
    checks.check_unbiased(compressor, x, variance.clamp_min(0))


def test_epsilon_is_the_variance() -> None:
    for epsilon in (0.1, 1.0, 10.0):
        for name, x in checks.inputs():
            unit = unit_of_variance(x.abs(), epsilon)
            square = x[x != 0].double().square()
            p = (x[x != 0].abs().double() / unit).clamp_max(1)
            assert float((square / p).sum() / square.sum() - 1) == pytest.approx(epsilon), name


def test_exact_for_few_numbers() -> None:
    x = torch.zeros(1000)
    x[[3, 500, 999]] = torch.tensor([5.0, -3.0, 0.1])
    for seed in range(50):
        assert torch.equal(checks.decoded(GSpar(ratio=0.003), x, checks.stream(seed)), x)
        assert checks.decoded(GSpar(), torch.tensor([-3.0]), checks.stream(seed)).tolist() == [-3.0]


def test_homogeneous() -> None:
    x = torch.randn(500, generator=checks.generator())
    out = checks.decoded(GSpar(0.1), x, checks.stream())
    assert torch.equal(checks.decoded(GSpar(0.1), 8 * x, checks.stream()), 8 * out)
    assert torch.equal(checks.decoded(GSpar(0.1), -x, checks.stream()), -out)


def test_payload_at_one_percent() -> None:
    n = 100_000
    x = torch.randn(1, n, generator=checks.generator())
    wire = GSpar(ratio=0.01).compress_(x, checks.stream(), False)
    assert 8 * wire.shape[1] / n <= 0.24


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shrink", [False, True])
def test_edges_and_corruption(code: str, shrink: bool) -> None:
    compressor = GSpar(0.1, index=code, shrink=shrink)
    checks.check_edges(compressor)
    checks.check_corruption(compressor)
    if shrink:
        checks.check_contraction(compressor)


@pytest.mark.parametrize("communicator", ["allgather", "broadcast", "scatterreduce", "parameterserver"])
def test_exchange(communicator: str) -> None:
    checks.check_exchange(grace.method("gspar", ratio=0.2, communicator=communicator))
    checks.check_nothing_lost(grace.method("gspar", ratio=0.2, communicator=communicator, memory="residual"))


def test_uniform32_resolves_small_probabilities() -> None:
    u = uniform32(Stream(0, "a", "b", 0, 0), 1 << 20, torch.device("cpu"))
    assert 0 < float(u.min()) < 2.0**-17
    assert float(u.max()) <= 1
    assert float(u.double().mean()) == pytest.approx(0.5, abs=2e-3)
    below = int((u < 2.0**-10).sum())
    assert abs(below - 1024) < 6 * 32


def test_knobs() -> None:
    for knobs in ({"ratio": 0}, {"epsilon": 0}, {"rounds": -1}, {"index": "x"}, {"ratio": 0.1, "epsilon": 1.0}):
        with pytest.raises(ConfigurationError, match="gspar"):
            GSpar(**knobs)
