"""The coarse operations, against definitions in plain Python."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace import kernels
from grace.kernels.spans import CHUNK


def packed_in_python(values: list[int], bits: int) -> bytes:
    """Field j occupies bits [j bits, (j+1) bits) of a little-endian bit stream."""
    stream = sum(value << (j * bits) for j, value in enumerate(values))
    return stream.to_bytes(math.ceil(len(values) * bits / 8), "little")


@pytest.mark.parametrize("bits", range(1, 33))
def test_pack_every_width_and_length(bits: int):
    source = random.Random(bits)
    for n in range(71):
        rows = [[source.randrange(1 << bits) for _ in range(n)] for _ in range(2)]
        if n:
            rows[0][-1] = (1 << bits) - 1
        values = torch.tensor(rows, dtype=torch.int64).view(2, n)
        packed = kernels.pack(values, bits)
        assert packed.dtype == torch.uint8
        assert packed.shape == (2, kernels.packed_bytes(n, bits))
        assert [bytes(row.tolist()) for row in packed] == [packed_in_python(row, bits) for row in rows]
        back = kernels.unpack(packed, bits, n)
        assert torch.equal(back.long(), values)
        assert back.dtype == (torch.uint8 if bits <= 8 else torch.int64)


@given(st.integers(1, 32).flatmap(lambda b: st.tuples(st.just(b), st.lists(st.integers(0, 2**b - 1), min_size=1))))
def test_pack_any_values(given_: tuple[int, list[int]]):
    bits, values = given_
    packed = kernels.pack(torch.tensor([values]), bits)
    assert bytes(packed[0].tolist()) == packed_in_python(values, bits)
    assert kernels.unpack(packed, bits, len(values)).tolist() == [values]


@given(st.lists(st.integers(0, 2), max_size=70))
def test_trits(digits: list[int]):
    packed = kernels.pack_trits(torch.tensor([digits], dtype=torch.int64).view(1, len(digits)))
    assert packed.shape == (1, kernels.packed_trits_bytes(len(digits)))
    expected = [sum(d * 3**j for j, d in enumerate(digits[i : i + 5])) for i in range(0, len(digits), 5)]
    assert packed[0].tolist() == expected
    assert all(byte <= 242 for byte in expected)
    assert kernels.unpack_trits(packed, len(digits)).tolist() == [digits]


@pytest.mark.parametrize(("n", "block"), [(1, 1), (7, 3), (6, 3), (5, 100), (64, 1)])
def test_blocks(n: int, block: int):
    rows = torch.randn(2, n, generator=torch.Generator().manual_seed(n))
    pieces = [[row[i : i + block] for i in range(0, n, block)] for row in rows]
    assert kernels.block_count(n, block) == len(pieces[0])
    assert kernels.block_sizes(n, block, rows).tolist() == [len(p) for p in pieces[0]]
    expected = torch.tensor([[p.abs().max() for p in row] for row in pieces])
    assert torch.equal(kernels.block_abs_max(rows, block), expected)
    means = torch.tensor([[p.double().abs().mean() for p in row] for row in pieces]).float()
    torch.testing.assert_close(kernels.block_abs_mean(rows, block), means, rtol=2e-7, atol=0)
    norms = torch.tensor([[p.double().norm() for p in row] for row in pieces]).float()
    torch.testing.assert_close(kernels.block_norm(rows, block), norms, rtol=2e-7, atol=0)
    spread = kernels.repeat_by_block(expected, n, block)
    assert torch.equal(spread, torch.stack([torch.cat([p.abs().max().expand(len(p)) for p in row]) for row in pieces]))


@pytest.mark.parametrize(("x", "expected"), [(3e38, torch.finfo(torch.float32).max), (1e-38, 2e-38), (0.0, 0.0)])
def test_a_norm_neither_overflows_nor_vanishes(x: float, expected: float):
    norm = kernels.block_norm(torch.full((1, 4), x), 4)
    torch.testing.assert_close(norm, torch.tensor([[expected]]), rtol=1e-6, atol=0)


def test_stochastic_round():
    y = torch.tensor([0.0, 2.4, 3.2, 2.9999999, 7.0, 1e6 + 0.5, 0.5, 0.5])
    u = torch.tensor([0.001, 0.3, 0.5, 0.999, 0.001, 0.2, 0.4, 0.6])
    assert kernels.stochastic_round(y, u).tolist() == [0, 3, 3, 3, 7, 1e6, 1, 0]


def test_stochastic_round_is_unbiased_on_a_grid_of_u():
    u = (torch.arange(65536) + 0.5) / 65536  # every u that the streams draw, once
    for y in (0.25, 0.1, 3.7, 126.999):
        mean = float(kernels.stochastic_round(torch.full_like(u, y), u).double().mean())
        assert abs(mean - float(torch.tensor(y))) <= 2.0**-16


@pytest.mark.parametrize(
    ("row", "k", "expected"),
    [
        ([0.1, -5.0, 3.0, -0.2, 4.0], 2, [1, 4]),
        ([2.0, -2.0, 2.0], 2, [0, 1]),  # of equal magnitudes the first
        ([2.0, -2.0, 2.0], 3, [0, 1, 2]),
        ([0.0, 0.0, 0.0, 0.0], 2, [0, 1]),
        ([1.0, math.nan, 3.0, math.inf], 2, [1, 3]),  # a NaN counts as infinite
        ([-math.inf, math.nan, math.inf], 1, [0]),
        ([1.0, 2.0, 2.0, 3.0, 2.0], 2, [1, 3]),
    ],
)
def test_select_topk(row: list[float], k: int, expected: list[int]):
    assert kernels.select_topk(torch.tensor([row]), k).tolist() == [expected]


@given(st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.0, -3.0, 0.5, math.nan]), min_size=1, max_size=40), st.data())
def test_select_topk_any_row(row: list[float], data: st.DataObject):
    k = data.draw(st.integers(1, len(row)))
    size = [math.inf if math.isnan(x) else abs(x) for x in row]
    expected = sorted(sorted(range(len(row)), key=lambda i: (-size[i], i))[:k])
    both = torch.tensor([row, row[::-1]])
    assert kernels.select_topk(both, k)[0].tolist() == expected


@pytest.mark.parametrize("kind", ["normal", "few values", "sorted", "one hot", "nan", "constant"])
@pytest.mark.parametrize("k", [1, 1000, 150_000, 299_999])
def test_select_topk_of_a_large_row_is_exact(kind: str, k: int):
    """Beyond one chunk a sample narrows the candidates down, whatever the row looks like."""
    n = 300_000
    assert n > CHUNK
    x = torch.randn(n, generator=torch.Generator().manual_seed(1))
    if kind == "few values":
        x = x.mul(2).round()
    elif kind == "sorted":
        x = x.sort().values
    elif kind == "one hot":
        x = torch.zeros(n)
        x[77_777] = -1.0
    elif kind == "nan":
        x[::1000] = math.nan
    elif kind == "constant":
        x = torch.full((n,), -2.0)
    size = x.abs().nan_to_num(nan=math.inf)
    expected = size.sort(descending=True, stable=True).indices[:k].sort().values
    assert torch.equal(kernels.select_topk(x[None], k)[0], expected)


@pytest.mark.parametrize("strict", [False, True])
def test_select_at_least(strict: bool):
    row = torch.tensor([0.5, -1.0, 1.0, math.nan, 2.0, -3.0, 0.0])
    assert kernels.select_at_least(row, 1.0, strict=strict).tolist() == ([3, 4, 5] if strict else [1, 2, 3, 4, 5])
    assert kernels.select_at_least(row[:0], 1.0).numel() == 0


@pytest.mark.parametrize(("rows", "n", "block"), [(1, 1, 1), (2, 300_000, 7), (1, 131_073, 4096), (3, 5, 100)])
def test_spans_cover_everything_once(rows: int, n: int, block: int):
    seen = torch.zeros(rows, n, dtype=torch.int64)
    for span in kernels.split_spans(rows, n, block):
        seen[span.row, span.columns] += 1
        assert len(span) == span.stop - span.start
        assert span.first == span.row * n + span.start
        assert span.start % block == 0, "a piece has whole blocks"
        assert span.start % 40 == 0, "and whole bytes, of bits and of trits"
        assert (span.stop == n) or span.stop % block == 0
    assert bool((seen == 1).all())
