from __future__ import annotations

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import ConfigurationError, PayloadError
from grace.kernels.quantiles.samples import SMALL
from grace.methods.sketch import Sketch

from .helpers import (
    check_contraction,
    check_corrupted,
    check_exchange,
    check_nothing_lost,
    check_rows,
    check_ugly,
    coded,
    shapes,
    stream,
)

VECTOR = torch.tensor([-4.0, -1.0, 0.0, 1.0, 2.0, 8.0])


def test_vector_of_the_specification():
    wire, decoded, _ = coded(Sketch(3), VECTOR)
    assert decoded.tolist() == [-2.5, -2.5, 0.5, 0.5, 5.0, 5.0]
    assert wire[0, :12].clone().view(torch.float32).tolist() == [-2.5, 0.5, 5.0]
    assert wire[0, 12:].tolist() == [0b01_01_00_00, 0b10_10]


def by_hand(x: Tensor, q: int) -> Tensor:
    """The definition without a zero edge, in a loop."""
    ordered = sorted(x.tolist())
    edges = [ordered[j * len(ordered) // q] for j in range(1, q)]
    code = [sum(edge <= value for edge in edges) for value in x.tolist()]
    buckets = [[v for v, c in zip(x.tolist(), code, strict=True) if c == j] for j in range(q)]
    return torch.tensor([sum(buckets[c]) / len(buckets[c]) for c in code])


@pytest.mark.parametrize("name", list(shapes()))
@pytest.mark.parametrize("q", [2, 7, 16])
def test_agrees_with_the_definition(name: str, q: int):
    x = shapes(500)[name]
    torch.testing.assert_close(coded(Sketch(q, zero_edge=False), x)[1], by_hand(x, q))


@pytest.mark.parametrize("q", [2, 3, 16, 256])
@pytest.mark.parametrize("share", [0.001, 0.02, 0.3, 0.5, 0.97, 0.999])
@pytest.mark.parametrize("n", [2, 3, 11, 1000])
def test_no_bucket_mixes_signs(q: int, share: float, n: int):
    g = torch.Generator().manual_seed(n)
    x = torch.rand(n, generator=g) + 0.1
    x[: max(1, int(share * n))] *= -1
    decoded = coded(Sketch(q), x)[1]
    assert torch.equal(decoded.sign(), x.sign())
    order = x.sort().indices
    assert (decoded[order].diff() >= 0).all()  # edges are in order


def test_flags():
    x = shapes()["heavy"]
    decoded = coded(Sketch(), x)[1]
    assert torch.equal(coded(Sketch(), x * 2.0**-30)[1], decoded * 2.0**-30)
    assert torch.equal(coded(Sketch(), decoded)[1], decoded)
    torch.testing.assert_close(decoded.double().sum(), x.double().sum(), rtol=1e-5, atol=1e-3)
    assert len(decoded.unique()) == 16


@pytest.mark.parametrize(
    "x", [torch.zeros(9), torch.full((70,), -0.3), torch.tensor([5.0]), torch.tensor([-2.0, 3.0] * 8), VECTOR]
)
def test_exact(x: Tensor):
    assert torch.equal(coded(Sketch(), x)[1], x)


def test_payload_size():
    x = shapes(10_001)["gauss"]
    for q, bits in ((2, 1), (3, 2), (16, 4), (64, 6), (256, 8)):
        size = 4 * q + -(-10_001 * bits // 8)
        assert coded(Sketch(q), x)[0].shape == (1, size)
        assert Sketch(q).facts(10_001).payload == size


def test_quantiles_of_a_sample():
    n = SMALL + 1
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    x[::2] = x[::2].abs()
    _, decoded, rest = coded(Sketch(), x)
    assert not Sketch().facts(n).deterministic
    assert Sketch(sample=1.0).facts(n).deterministic
    exact = coded(Sketch(sample=1.0), x)[2].square().mean()
    assert rest.square().mean() < 1.3 * exact
    assert torch.equal(decoded.sign(), x.sign())


@pytest.mark.parametrize("compressor", [Sketch(), Sketch(2), Sketch(3), Sketch(256), Sketch(16, zero_edge=False)])
def test_bounds_and_edges(compressor: Sketch):
    check_contraction(compressor)
    check_rows(compressor)
    check_ugly(compressor)
    check_corrupted(compressor)


def test_bound_of_the_specification():
    for x in shapes().values():
        rest = coded(Sketch(4), x)[2].double()
        x = x.double()
        bound = x.abs().sum() ** 2 / (x.numel() * x.square().sum())
        assert rest.square().sum() <= (1 - bound) * x.square().sum() + 1e-9 * x.square().sum()


def test_the_rest_of_a_bucket_that_mixes_signs_is_finite():
    x = torch.tensor([-3e38] + [3e38] * 5 + [3.2e38] * 7)
    assert (coded(Sketch(2, zero_edge=False), x)[2] == -torch.finfo(torch.float32).max).any()
    assert coded(Sketch(2, zero_edge=False), x)[2].isfinite().all()


def test_refuses_a_code_without_a_bucket():
    wire = coded(Sketch(3), VECTOR)[0]
    wire[0, -1] = 0b1111
    with pytest.raises(PayloadError, match="codes"):
        Sketch(3).decompress_add_(wire, torch.zeros(1, 6), 1.0, stream())


@pytest.mark.parametrize("world", [1, 3])  # the laws' tests run it with up to eight
def test_agreement_and_conservation(world: int):
    for communicator in ("allgather", "scatterreduce"):
        check_exchange(grace.method("sketch:memory=none", communicator=communicator), world)
        check_nothing_lost(grace.method("sketch:quantiles=5", communicator=communicator), world)


def test_knobs():
    for knobs in ({"quantiles": 1}, {"quantiles": 257}, {"quantiles": 2.0}, {"zero_edge": 1}, {"sample": 0}):
        with pytest.raises(ConfigurationError):
            Sketch(**knobs)
