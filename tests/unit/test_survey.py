from __future__ import annotations

import pytest
import torch

from grace.errors import ConfigurationError, PayloadError
from grace.random import Stream
from grace.survey import dequantize, desparsify, pack, quantize, sparsify, unpack

RNG = Stream(0, "test", "x", 0, 0)


@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("count", [0, 1, 7, 8, 100, 1001])
def test_pack_round_trip(bits: int, count: int) -> None:
    codes = torch.randint(0, 1 << bits, (count,), generator=torch.Generator().manual_seed(bits))
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (-(-count * bits // 8),)
    assert torch.equal(unpack(packed, bits, count), codes.int())
    whole = sum(code << (j * bits) for j, code in enumerate(codes.tolist()))  # one little-endian number
    assert bytes(packed.tolist()) == whole.to_bytes(len(packed), "little")


def test_pack_takes_any_shape_and_refuses_what_does_not_fit() -> None:
    assert pack(torch.tensor([[1, 2], [3, 0]], dtype=torch.uint8).T, 2).tolist() == [0b00_10_11_01]
    for bad in (4, -1):
        with pytest.raises(ConfigurationError, match="codes"):
            pack(torch.tensor([bad]), 2)
    for bits in (0, 17):
        with pytest.raises(ConfigurationError, match="bits"):
            pack(torch.tensor([0]), bits)
        with pytest.raises(ConfigurationError, match="bits"):
            unpack(torch.zeros(4, dtype=torch.uint8), bits, 1)
    for count in (3, 9):
        with pytest.raises(PayloadError):
            unpack(torch.zeros(1, dtype=torch.uint8), 4, count)
    with pytest.raises(ConfigurationError, match="count"):
        unpack(torch.zeros(0, dtype=torch.uint8), 4, -1)


@pytest.mark.parametrize("bits", [2, 3, 8, 16])
def test_quantize_rounds_to_the_nearest_level(bits: int) -> None:
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    codes, scale = quantize(x, bits)
    s = 2 ** (bits - 1) - 1
    assert codes.shape == x.shape
    assert 0 <= int(codes.min()) <= int(codes.max()) <= 2 * s
    back = dequantize(codes, scale, bits)
    assert float((back - x).abs().max()) <= float(scale) / (2 * s) * (1 + 1e-5)
    again, _ = quantize(back, bits)
    assert torch.equal(again, codes)
    assert torch.equal(quantize(-x, bits)[0], 2 * s - codes)


def test_quantize_at_random_is_unbiased() -> None:
    x = torch.tensor([1.0, -0.3, 0.05]).repeat_interleave(4096)
    codes, scale = quantize(x, 3, RNG)
    means = dequantize(codes, scale, 3).view(3, -1).mean(1)
    assert means[0] == 1
    assert float((means - torch.tensor([1.0, -0.3, 0.05])).abs().max()) <= 6 / (2 * 3) / 64


@pytest.mark.parametrize("x", [torch.zeros(3), torch.tensor([1e-39, -1e-45]), torch.zeros(0), torch.zeros(2, 0)])
def test_quantize_of_next_to_nothing(x: torch.Tensor) -> None:
    codes, scale = quantize(x, 4)
    assert scale == 0
    assert codes.shape == x.shape
    assert not bool(dequantize(codes, scale, 4).any())


def test_quantize_of_huge_numbers_and_other_types() -> None:
    x = torch.tensor([3.4e38, -1.7e38, 0.0])
    assert quantize(x, 3)[0].tolist() == [6, 1, 3]
    assert quantize(x.double() / 1e38, 3, RNG)[0].tolist()[0] == 6
    assert quantize(torch.tensor([1.0, -1.0], dtype=torch.bfloat16), 2)[0].tolist() == [2, 0]
    assert quantize(torch.tensor(2.0), 2)[0].shape == ()


def test_dequantize_trusts_nothing() -> None:
    for codes, scale in (([7], 1.0), ([-1], 1.0), ([3], float("nan")), ([3], -1.0)):
        with pytest.raises(PayloadError):
            dequantize(torch.tensor(codes), torch.tensor(scale), 3)
    for bits in (1, 17):
        with pytest.raises(ConfigurationError, match="bits"):
            quantize(torch.ones(1), bits)


def test_sparsify_and_back() -> None:
    x = torch.tensor([[0.1, -5, 3], [-0.2, 4, 0]])
    values, index = sparsify(x, ratio=1 / 3)
    assert (values.tolist(), index.tolist()) == ([-5, 4], [1, 4])
    assert desparsify(values, index, x.shape).tolist() == [[0, -5, 0], [0, 4, 0]]
    values, index = sparsify(x.double().T, threshold=3)
    assert (values.tolist(), index.tolist()) == ([-5, 4], [2, 3])  # positions in the order of x.T; strict
    assert sparsify(torch.zeros(0), ratio=0.1)[0].numel() == 0
    assert sparsify(x, threshold=9)[1].numel() == 0


def test_sparsify_and_desparsify_refuse() -> None:
    x = torch.ones(4)
    for knobs in ({}, {"ratio": 0.1, "threshold": 1}, {"ratio": 0}, {"ratio": 2}, {"threshold": -1}):
        with pytest.raises(ConfigurationError, match="sparsify"):
            sparsify(x, **knobs)
    for index in ([4], [-1], [0, 1]):
        with pytest.raises(PayloadError, match="index"):
            desparsify(torch.ones(1), torch.tensor(index), (4,))
