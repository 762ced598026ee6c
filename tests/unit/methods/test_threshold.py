from __future__ import annotations

import pytest
import torch

import grace
from grace.errors import ConfigurationError
from grace.kernels.index_codes.codes import CODES
from grace.methods import Threshold

from . import sparse_checks as checks


def test_vector_of_the_specification() -> None:
    x = torch.tensor([0.5, -1, 2, -3])
    assert checks.decoded(Threshold(1.0), x, checks.stream()).tolist() == [0, 0, 2, -3]
    wire = Threshold(1.0, index="raw").compress_(torch.cat([x, torch.zeros(100)])[None], checks.stream(), False)
    assert wire.shape[1] == 4 + 2 * 4 + 2  # the count, two values, two indices of 7 bits
    assert Threshold(9.0).compress_(x[None], checks.stream(), False).shape[1] == 4  # nothing passes


def test_dense_where_that_is_smaller() -> None:
    x = torch.randn(1, 1000)
    assert Threshold(1e-9).compress_(x.clone(), checks.stream(), False).shape[1] == 4 + 4000
    assert torch.equal(checks.decoded(Threshold(1e-9), x[0], checks.stream()), x[0])


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("values", ["float32", "bfloat16"])
def test_all_codings(code: str, values: str) -> None:
    compressor = Threshold(1.5, index=code, values=values)
    checks.check_edges(compressor)
    checks.check_corruption(compressor)
    for _, x in checks.inputs():
        out = checks.decoded(compressor, x, checks.stream())
        assert torch.equal(out != 0, x.abs() > 1.5)
        assert torch.equal(checks.decoded(compressor, -x, checks.stream()), -out)


@pytest.mark.parametrize("code", ["auto", "delta"])
@pytest.mark.parametrize("communicator", ["allgather", "broadcast", "scatterreduce", "parameterserver"])
def test_exchange(code: str, communicator: str) -> None:
    checks.check_exchange(grace.method("threshold", v=1.0, index=code, communicator=communicator, memory="none"))
    checks.check_nothing_lost(
        grace.method("threshold", v=1.0, index=code, values="bfloat16", communicator=communicator)
    )


def test_knobs() -> None:
    for knobs in ({"v": 0}, {"v": float("inf")}, {"relative": 1}, {"index": "huffman"}, {"values": "int8"}):
        with pytest.raises(ConfigurationError, match="threshold"):
            Threshold(**knobs)
