from __future__ import annotations

import math

import pytest
import torch

import grace
from grace.errors import ConfigurationError
from grace.kernels.sparse_codes import wire as coded_wire
from grace.methods.strom import Strom

from .helpers import (
    check_contraction,
    check_corrupted,
    check_exchange,
    check_nothing_lost,
    check_rows,
    check_ugly,
    coded,
    shapes,
    steps,
)


def test_vector_of_the_specification():
    x = torch.tensor([0.5, -0.1, -0.7])
    wire, decoded, rest = coded(Strom(0.3, relative=False), x)
    torch.testing.assert_close(decoded, torch.tensor([0.3, 0.0, -0.3]))
    torch.testing.assert_close(rest, torch.tensor([0.2, -0.1, -0.4]))
    _, index, positive = coded_wire.split(wire, ("tau", torch.float32, 1), 1, 3, "auto")
    assert (2 * index + positive).tolist() == [1, 4]  # the paper's words


def test_the_threshold_itself_is_not_sent():
    assert not coded(Strom(0.5, relative=False), torch.tensor([0.5, -0.5]))[1].any()


def test_relative_threshold():
    x = torch.tensor([1.0, 1.0, 1.0, 5.0])  # rms sqrt(7)
    assert torch.allclose(coded(Strom(1.5), x)[1], torch.tensor([0.0, 0.0, 0.0, 1.5 * math.sqrt(7)]))


def test_several_quanta():
    x = torch.tensor([1.0, -2.9, 4.0, 9.0, 0.5])
    assert coded(Strom(1.0, relative=False, quanta=4), x)[1].tolist() == [0.0, -2.0, 4.0, 4.0, 0.0]
    x = torch.randn(5000, generator=torch.Generator().manual_seed(2)) * 100
    _, decoded, rest = coded(Strom(0.3, relative=False, quanta=65536), x)
    assert rest.abs().max() <= 0.3 + 1e-5
    assert torch.allclose(decoded / 0.3, (decoded / 0.3).round(), atol=1e-2)


def test_drains_one_quantum_per_step():
    method = grace.method("strom:tau=1,relative=false")
    outs, states = steps(method, [[torch.tensor([3.5, -1.0])]] + [[torch.zeros(2)]] * 4)
    assert [out.mean.tolist() for out in outs] == [[1.0, 0.0]] * 3 + [[0.0, 0.0]] * 2
    assert states[0][0].tolist() == [0.5, -1.0]


def test_odd_and_homogeneous():
    x = shapes()["heavy"]
    decoded = coded(Strom(quanta=3), x)[1]
    assert decoded.any()
    assert torch.equal(coded(Strom(quanta=3), -x)[1], -decoded)
    assert torch.equal(coded(Strom(quanta=3), x * 2.0**-30)[1], decoded * 2.0**-30)


def test_payload_size():
    x = shapes(100_000)["gauss"]
    wire, decoded, _ = coded(Strom(3.0, index="raw"), x)
    k = int((decoded != 0).sum())
    assert 200 < k < 350
    assert wire.shape[1] == 8 + -(-k // 8) + -(-17 * k // 8)
    assert coded(Strom(3.0), torch.zeros(100))[0].shape[1] == 8
    assert 8 * coded(Strom(3.0), x)[0].shape[1] / k < 12.2  # the paper: 32


@pytest.mark.parametrize(
    "compressor", [Strom(), Strom(0.5, quanta=5), Strom(1e-3, relative=False, quanta=65536), Strom(index="rice")]
)
def test_bounds_and_edges(compressor: Strom):
    check_contraction(compressor)
    check_rows(compressor)
    check_ugly(compressor)
    check_corrupted(compressor)
    for x in shapes().values():
        assert (coded(compressor, x)[2].abs() <= x.abs()).all()


@pytest.mark.parametrize("world", [1, 3])  # the laws' tests run it with up to eight
def test_agreement_and_conservation(world: int):
    for communicator in ("allgather", "scatterreduce"):
        check_exchange(grace.method("strom:tau=1,memory=none", communicator=communicator), world)
        check_nothing_lost(grace.method("strom:tau=0.5,relative=false,quanta=2", communicator=communicator), world)


def test_knobs():
    for knobs in ({"tau": 0}, {"tau": math.inf}, {"relative": 1}, {"quanta": 0}, {"quanta": 1 << 17}, {"index": "zip"}):
        with pytest.raises(ConfigurationError):
            Strom(**knobs)
