from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import ConfigurationError
from grace.kernels import PRIME
from grace.kernels.minmax_sketch import sketch as minmax_sketch
from grace.methods.sketch import Sketch
from grace.methods.sketchml import SketchML

from .helpers import (
    UGLY,
    check_corrupted,
    check_exchange,
    check_nothing_lost,
    check_rows,
    check_ugly,
    coded,
    shapes,
    stream,
)


def some_keys(k: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(4)
    keys = torch.randperm(10 * k, generator=g)[:k].sort().values
    return keys, torch.randint(0, 3, (k,), generator=g), torch.randint(0, 8, (k,), generator=g)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_sketch_agrees_with_a_table_of_dictionaries(rows: int):
    keys, group, numbers = some_keys(200)
    words = stream().words(rows)
    ab = [((w & 0xFFFFFFFF) % PRIME) for w in words.view(-1).tolist()]
    packed = minmax_sketch.encode(numbers, group, keys, [8, 8, 8], rows, 0.3, words)
    expected = []
    for key, own_group, _ in zip(keys.tolist(), group.tolist(), numbers.tolist(), strict=True):
        cols = math.ceil(0.3 * int((group == own_group).sum()))

        def cells(i: int, cols: int = cols) -> list[int]:
            return [(ab[2 * j] * i + ab[2 * j + 1]) % PRIME % cols for j in range(rows)]

        rivals = [(cells(int(i)), int(v)) for i, g, v in zip(keys, group, numbers, strict=True) if g == own_group]
        expected.append(max(min(v for at, v in rivals if at[j] == cells(key)[j]) for j in range(rows)))
    assert minmax_sketch.decode(packed, group, keys, [8, 8, 8], rows, 0.3, words).tolist() == expected
    assert all(e <= v for e, v in zip(expected, numbers.tolist(), strict=True))


def test_sketch_without_collisions_is_exact():
    keys, group, numbers = some_keys(3)
    words = stream().words(16)
    packed = minmax_sketch.encode(numbers, group, keys, [8, 8, 8], 16, 1.0, words)
    assert torch.equal(minmax_sketch.decode(packed, group, keys, [8, 8, 8], 16, 1.0, words), numbers)


def test_sketch_size():
    keys, _, numbers = some_keys(200)
    group = torch.arange(200) % 2
    packed = minmax_sketch.encode(numbers % 5, group, keys, [5, 5], 2, 0.3, stream().words(2))
    assert packed.numel() == 2 * math.ceil(2 * 30 * 3 / 8)
    assert minmax_sketch.encode(numbers * 0, group, keys, [1, 1], 2, 0.3, stream().words(2)).numel() == 0


@pytest.mark.parametrize("quantiles", [2, 5, 16, 256])
@pytest.mark.parametrize("name", [*shapes(), "positive"])
def test_magnitudes_shrink_and_no_sign_is_flipped(name: str, quantiles: int):
    x = shapes()[name] if name != "positive" else shapes()["heavy"].abs()
    decoded = coded(SketchML(quantiles), x)[1]
    assert torch.equal(decoded.sign(), x.sign())
    quantized = torch.zeros_like(x)
    quantized[x != 0] = coded(Sketch(quantiles), x[x != 0])[1]
    assert (decoded.abs() <= quantized.abs()).all()


def test_most_buckets_survive():
    x = shapes()["gauss"]
    right = coded(SketchML(16), x)[1] == coded(Sketch(16), x)[1]
    assert right.float().mean() > 0.6
    full = coded(SketchML(16, groups=16), x)[1]  # a group for each bucket: nothing is left to sketch
    assert torch.equal(full, coded(Sketch(16), x)[1])
    assert SketchML(16, groups=16).facts(4000).deterministic
    assert not SketchML(16).facts(4000).deterministic


def test_homogeneous_and_exact():
    x = shapes()["sparse"]
    decoded = coded(SketchML(), x)[1]
    assert torch.equal(coded(SketchML(), x * 2.0**-20)[1], decoded * 2.0**-20)
    for exact in (torch.zeros(50), torch.tensor([0.0, 0.0, 3.5, 0.0]), torch.tensor([-2.0, 0.0, -2.0])):
        assert torch.equal(coded(SketchML(), exact)[1], exact)


def test_payload_size():
    x = shapes(100_000)["sparse"]
    k = int((x != 0).sum())
    wire = coded(SketchML(256, index="raw"), x)[0]
    small = 8 + 4 * 256 + -(-3 * k // 8) + -(-17 * k // 8)
    cells = wire.shape[1] - small  # eight groups of about 32 buckets: rows * share * (5 or 6) bits each
    assert 2 * 0.3 * 5 * k / 8 <= cells <= 2 * 0.3 * 6 * k / 8 + 8 * (2 * 6 / 8 + 1)
    assert coded(SketchML(), torch.zeros(1000))[0].shape[1] == 8 + 64


@pytest.mark.parametrize(
    "compressor", [SketchML(), SketchML(256, index="rice"), SketchML(3, groups=2, rows=1, share=1.0)]
)
def test_edges(compressor: SketchML):
    check_rows(compressor)
    check_ugly(compressor)
    check_corrupted(compressor)
    for x in UGLY.values():
        assert (coded(compressor, x)[1].sign() * x.sign() >= 0).all()


@pytest.mark.parametrize("world", [1, 3])  # the laws' tests run it with up to eight
def test_agreement_and_conservation(world: int):
    for communicator in ("allgather", "scatterreduce"):
        check_exchange(grace.method("sketchml:memory=none", communicator=communicator), world)
        check_nothing_lost(grace.method("sketchml:quantiles=5", communicator=communicator), world)


def test_knobs():
    wrong = (
        {"quantiles": 1},
        {"groups": 1},
        {"rows": 0},
        {"share": 0},
        {"share": 1.1},
        {"sample": 2},
        {"index": "zip"},
    )
    for knobs in wrong:
        with pytest.raises(ConfigurationError):
            SketchML(**knobs)
