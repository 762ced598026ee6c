from __future__ import annotations

import math

import pytest
import torch

import grace
from grace.errors import ConfigurationError
from grace.kernels.index_codes.codes import CODES, varies
from grace.methods import TopK

from . import sparse_checks as checks


def test_vector_of_the_specification() -> None:
    assert checks.decoded(TopK(0.4), torch.tensor([0.1, -5, 3, -0.2, 4]), checks.stream()).tolist() == [0, -5, 0, 0, 4]
    assert checks.decoded(TopK(0.5), torch.tensor([2.0, -2, 2]), checks.stream()).tolist() == [2, -2, 0]


def test_raw_payload_is_k_times_32_plus_ceil_log2_n_bits() -> None:
    n = 10_000
    wire = TopK(0.01, index="raw").compress_(torch.randn(1, n), checks.stream(), False)
    assert wire.shape[1] == 100 * 4 + 100 * 14 / 8 == TopK(0.01, index="raw").facts(n).payload


@pytest.mark.parametrize("n", [10_000, 123_457, 1_000_000])
def test_one_percent_takes_at_most_32_plus_8_7_bits_per_kept_element(n: int) -> None:
    wire = TopK().compress_(torch.randn(1, n), checks.stream(), False)
    k = math.ceil(n / 100)
    assert wire.shape[1] == TopK().facts(n).payload
    assert 8 * wire.shape[1] / k <= 32 + 8.7


def test_bfloat16_halves_the_values() -> None:
    n, k = 10_000, 100
    assert TopK().facts(n).payload - TopK(values="bfloat16").facts(n).payload == 2 * k


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("values", ["float32", "bfloat16"])
def test_all_codings(code: str, values: str) -> None:
    compressor = TopK(0.1, code, values)
    assert compressor.varies == varies(code) == (compressor.facts(1000).payload is None)
    checks.check_edges(compressor)
    checks.check_contraction(compressor, draws=1)
    checks.check_corruption(compressor)
    for _, x in checks.inputs():
        out = checks.decoded(compressor, x, checks.stream())
        assert torch.equal(checks.decoded(compressor, out, checks.stream()), out)  # idempotent
        assert torch.equal(checks.decoded(compressor, -x, checks.stream()), -out)  # odd
        assert torch.equal(checks.decoded(compressor, 0.25 * x, checks.stream()), 0.25 * out)  # homogeneous


@pytest.mark.parametrize("code", ["auto", "rice"])
@pytest.mark.parametrize("communicator", ["allgather", "broadcast", "scatterreduce", "parameterserver"])
def test_exchange(code: str, communicator: str) -> None:
    checks.check_exchange(grace.method("topk", ratio=0.1, index=code, communicator=communicator, memory="none"))
    checks.check_nothing_lost(grace.method("topk", ratio=0.1, index=code, values="bfloat16", communicator=communicator))


def test_knobs() -> None:
    for knobs in ({"ratio": 0}, {"ratio": 1.1}, {"index": "huffman"}, {"values": "float16"}):
        with pytest.raises(ConfigurationError, match="topk"):
            TopK(**knobs)
    assert grace.spell(grace.method("topk:index=elias-fano,values=bfloat16")) == "topk:index=elias-fano,values=bfloat16"
