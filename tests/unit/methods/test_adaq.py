from __future__ import annotations

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import ConfigurationError
from grace.methods.adaq import AdaQ

from .helpers import (
    check_contraction,
    check_corrupted,
    check_exchange,
    check_nothing_lost,
    check_rows,
    check_ugly,
    coded,
    shapes,
)

VECTOR = torch.tensor([4.0, 2.0, 1.0, -1.0, -3.0, -8.0])


def dense(x: Tensor, ratio: float) -> Tensor:
    """The definition, by sorting."""
    out = torch.zeros_like(x)
    for sign in (1, -1):
        at = (x * sign > 0).nonzero()[:, 0]
        if at.numel():
            k = max(1, int(-(-ratio * at.numel() // 1)))
            top = at[(x[at] * sign).sort(descending=True, stable=True).indices[:k]]
            out[top] = x[top].double().mean().float()
    return out


def test_vector_of_the_specification():
    _, decoded, rest = coded(AdaQ(2 / 3), VECTOR)
    assert decoded.tolist() == [3.0, 3.0, 0.0, 0.0, -5.5, -5.5]
    assert rest.tolist() == [1.0, -1.0, 1.0, -1.0, 2.5, -2.5]


def test_joint_threshold():
    _, decoded, _ = coded(AdaQ(0.5, joint=True), VECTOR)  # |x| in {8, 4, 3}
    assert decoded.tolist() == [4.0, 0.0, 0.0, 0.0, -5.5, -5.5]


def test_zeros_are_on_neither_side():
    x = torch.tensor([0.0, 0.0, 5.0, 0.0, -0.0])
    for compressor in (AdaQ(1.0), AdaQ(1.0, joint=True)):
        assert coded(compressor, x)[1].tolist() == [0.0, 0.0, 5.0, 0.0, 0.0]


@pytest.mark.parametrize("name", list(shapes()))
@pytest.mark.parametrize("ratio", [0.01, 0.25])
def test_agrees_with_the_definition(name: str, ratio: float):
    x = shapes(1000)[name]
    decoded = coded(AdaQ(ratio), x)[1]
    assert torch.equal(decoded, dense(x, ratio))


def test_flags():
    x = shapes()["heavy"]
    decoded = coded(AdaQ(0.05), x)[1]
    assert torch.equal(coded(AdaQ(0.05), -x)[1], -decoded)
    assert torch.equal(coded(AdaQ(0.05), x * 2.0**-30)[1], decoded * 2.0**-30)
    assert torch.equal(coded(AdaQ(1.0), coded(AdaQ(1.0), x)[1])[1], coded(AdaQ(1.0), x)[1])


def test_exact_for_one_magnitude_per_side():
    x = torch.tensor([3.0, -0.5, 0.0, 3.0, -0.5, -0.5])
    assert torch.equal(coded(AdaQ(1.0), x)[1], x)


def test_payload_size():
    x = shapes(100_000)["gauss"]
    k = int((coded(AdaQ(0.01), x)[1] != 0).sum())
    assert k in (1000, 1001)
    assert coded(AdaQ(0.01, index="raw"), x)[0].shape[1] == 12 + -(-k // 8) + -(-17 * k // 8)
    assert 8 * coded(AdaQ(0.01), x)[0].shape[1] / x.numel() < 0.0982


def test_sampled_thresholds_are_near():
    x = shapes(200_000)["gauss"]
    for compressor in (AdaQ(0.01, sample=1024), AdaQ(0.01, sample=1024, joint=True)):
        assert 800 < int((coded(compressor, x)[1] != 0).sum()) < 4000


@pytest.mark.parametrize("compressor", [AdaQ(), AdaQ(0.3), AdaQ(0.1, sample=16), AdaQ(0.2, joint=True, index="rice")])
def test_bounds_and_edges(compressor: AdaQ):
    check_contraction(compressor)
    check_rows(compressor)
    check_ugly(compressor)
    check_corrupted(compressor)


def test_bound_of_the_specification():
    for x in shapes().values():
        decoded = coded(AdaQ(0.1), x)[1].double()
        x = x.double()
        bound = 0.1 * x.abs().sum() ** 2 / (x.numel() * x.square().sum())
        assert (x - decoded).square().sum() <= (1 - bound) * x.square().sum() * (1 + 1e-5)


@pytest.mark.parametrize("world", [1, 3])  # the laws' tests run it with up to eight
def test_agreement_and_conservation(world: int):
    for communicator in ("allgather", "scatterreduce"):
        check_exchange(grace.method("adaq:ratio=0.2,memory=none", communicator=communicator), world)
        check_nothing_lost(grace.method("adaq:ratio=0.2", communicator=communicator), world)


def test_knobs():
    for knobs in ({"ratio": 0}, {"ratio": 2}, {"sample": -1}, {"sample": 0.5}, {"joint": 1}, {"index": "zip"}):
        with pytest.raises(ConfigurationError):
            AdaQ(**knobs)
