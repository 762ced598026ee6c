"""topk, randomk, threshold: the vectors that were worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import grace
from grace.errors import ConfigurationError
from grace.kernels.index_codes.codes import index_bits
from grace.methods.common.counts import count_kept
from tests.unit.methods.tools import Fixed, hex_of, roundtrip, row, stream, wire_of


@pytest.mark.parametrize(
    ("ratio", "n", "k"),
    [
        (0.01, 100, 1),
        (0.01, 101, 2),
        (0.01, 1, 1),
        (1e-9, 5, 1),
        (1.0, 7, 7),
        (0.1, 10, 1),
        (0.3, 10, 3),
        (0.07, 100, 7),
    ],
)
def test_how_many_are_kept(ratio: float, n: int, k: int):
    assert count_kept(ratio, n) == k


@pytest.mark.parametrize(("n", "bits"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (4096, 12), (4097, 13), (2**32, 32)])
def test_bits_of_an_index(n: int, bits: int):
    assert index_bits(n) == bits


# ---- topk -----------------------------------------------------------------------------------------------------------
def test_topk_by_hand():
    x = row(0.1, -5, 3, -0.2, 4)
    decoded, rest = roundtrip(grace.TopK(ratio=0.4), x)
    assert decoded == [0, -5, 0, 0, 4]
    assert rest == row(0.1, 0, 3, -0.2, 0)[0].tolist()
    assert hex_of(wire_of(grace.TopK(ratio=0.4), x)) == "0000a0c000008040" + "21"  # 1 and 4, three bits each
    assert roundtrip(grace.TopK(ratio=0.5), row(2, -2, 2))[0] == [2, -2, 0], "of equal magnitudes the first"


@pytest.mark.parametrize(("ratio", "n"), [(0.01, 1000), (0.5, 7), (1.0, 33), (0.001, 10)])
def test_size_of_topk(ratio: float, n: int):
    k = count_kept(ratio, n)
    facts = grace.TopK(ratio=ratio, index="raw").facts(n)
    assert grace.TopK(ratio=ratio).facts(n).payload <= facts.payload
    assert facts.payload == 4 * k + math.ceil(k * index_bits(n) / 8)
    assert facts.contraction == k / n
    assert facts.deterministic


def test_topk_is_odd_homogeneous_and_idempotent():
    x = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    compressor = grace.TopK(ratio=0.2)
    decoded = torch.tensor([roundtrip(compressor, x)[0]])
    assert torch.equal(torch.tensor([roundtrip(compressor, -x)[0]]), -decoded)
    assert torch.equal(torch.tensor([roundtrip(compressor, 8 * x)[0]]), 8 * decoded)
    assert torch.equal(torch.tensor([roundtrip(compressor, decoded)[0]]), decoded)


# ---- randomk --------------------------------------------------------------------------------------------------------
def test_randomk_by_hand():
    """x = [1, 2, 3, 4], S = {1, 3}: unscaled [0, 2, 0, 4], scaled by n/k = 2: [0, 4, 0, 8]."""
    rng = Fixed(positions=[1, 3])
    assert roundtrip(grace.RandomK(ratio=0.5, scale=False), row(1, 2, 3, 4), rng) == ([0, 2, 0, 4], [1, 0, 3, 0])
    assert roundtrip(grace.RandomK(ratio=0.5), row(1, 2, 3, 4), rng) == ([0, 4, 0, 8], [1, -2, 3, -4])
    assert hex_of(wire_of(grace.RandomK(ratio=0.5), row(1, 2, 3, 4), rng)) == "0000004000008040"


def test_randomk_sends_values_only_and_all_ranks_the_same_positions():
    compressor = grace.RandomK(ratio=0.1)
    assert compressor.facts(1000).payload == 400
    x = torch.arange(1.0, 101.0)[None]
    first, second = (wire_of(compressor, x, stream(compressor, rank=rank)) for rank in (0, 5))
    assert torch.equal(first, second)
    assert not torch.equal(first, wire_of(compressor, x, stream(compressor, step=1)))


def test_randomk_of_all_is_exact_in_bits():
    x = torch.randn(1, 100, generator=torch.Generator().manual_seed(0))
    assert roundtrip(grace.RandomK(ratio=1.0), x)[0] == x[0].tolist()


def test_facts_of_randomk():
    scaled, plain = grace.RandomK(ratio=0.25).facts(100), grace.RandomK(ratio=0.25, scale=False).facts(100)
    assert (scaled.unbiased, scaled.variance, scaled.contraction) == (True, 3.0, None)
    assert (plain.unbiased, plain.variance, plain.contraction) == (False, None, 0.25)


# ---- threshold ------------------------------------------------------------------------------------------------------
def test_threshold_by_hand():
    """v = 1: [.5, -1, 2, -3, 0, 0, 0, 0] -> {2, 3}: strictly more than v."""
    x = row(0.5, -1, 2, -3, 0, 0, 0, 0)
    decoded, rest = roundtrip(grace.Threshold(v=1.0), x)
    assert decoded == [0, 0, 2, -3, 0, 0, 0, 0]
    assert rest == [0.5, -1, 0, 0, 0, 0, 0, 0]
    assert hex_of(wire_of(grace.Threshold(v=1.0), x)) == "0200000000000040000040c0" + "1a"  # 2 and 3, three bits


def test_nothing_passes_and_everything_passes():
    assert hex_of(wire_of(grace.Threshold(v=10.0), row(1, 2, 3))) == "00000000"
    assert hex_of(wire_of(grace.Threshold(v=0.5), row(1, -2))) == "ffffffff0000803f000000c0"  # all, without indices
    assert roundtrip(grace.Threshold(v=0.5), row(1, -2)) == ([1, -2], [0, 0])


def test_never_much_more_than_dense():
    for n in (1, 5, 100):
        x = torch.randn(1, n, generator=torch.Generator().manual_seed(n))
        for v in (1e-9, 0.1, 0.5, 1.0, 3.0):
            assert wire_of(grace.Threshold(v=v), x).shape[1] <= 4 + 4 * n


def test_all_negative_is_like_all_positive():
    x = row(-3, -1, -0.5, -0.2, -0.1, -0.1)
    assert roundtrip(grace.Threshold(v=0.7), x)[0] == [-3, -1, 0, 0, 0, 0]


def test_relative_to_the_root_mean_square():
    x = row(*[1.0] * 99, 10.0)  # rms = sqrt(199 / 100) = 1.41
    compressor = grace.Threshold(v=1.5, relative=True)
    assert roundtrip(compressor, x)[0] == [0.0] * 99 + [10.0]
    assert roundtrip(compressor, 1024 * x)[0] == [0.0] * 99 + [10240.0]


def test_rows_of_different_lengths():
    """The shorter is padded, and padding is not read."""
    x = torch.zeros(2, 40)
    x[0, 3], x[1, :5] = 2.0, torch.tensor([9.0, 8, 7, 6, 5])
    compressor = grace.Threshold(v=1.0)
    wire = wire_of(compressor, x)
    out = torch.zeros_like(x)
    compressor.decompress_add_(wire, out, 1.0, stream(compressor))
    assert torch.equal(out, x)


# ---- knobs ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "knobs", "message"),
    [
        (grace.TopK, {"ratio": 0.0}, r"topk: ratio=0\.0 is out of range; legal: 0 < ratio <= 1"),
        (grace.TopK, {"ratio": 1.01}, r"topk: ratio=1\.01 is out of range"),
        (grace.TopK, {"ratio": math.nan}, "topk: ratio=nan is out of range"),
        (grace.RandomK, {"ratio": -0.5}, r"randomk: ratio=-0\.5 is out of range; legal: 0 < ratio <= 1"),
        (grace.RandomK, {"scale": "x"}, "randomk: scale='x' is out of range; legal: True, False, or none"),
        (grace.Threshold, {"v": 0.0}, r"threshold: v=0\.0 is out of range; legal: 0 < v < inf"),
        (grace.Threshold, {"v": math.inf}, "threshold: v=inf is out of range"),
        (grace.Threshold, {"v": math.nan}, "threshold: v=nan is out of range"),
        (grace.Threshold, {"relative": 1}, "threshold: relative=1 is out of range; legal: True, False"),
    ],
)
def test_knobs_are_checked(make: Any, knobs: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        make(**knobs)
