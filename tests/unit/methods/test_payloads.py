"""Bytes from the network are never trusted: whatever is flipped, a PayloadError or a decode, and no crash."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grace
from grace.contract.compressor import Compressor
from grace.errors import PayloadError
from grace.kernels import split_spans
from tests.golden.golden import COMPRESSORS
from tests.unit.methods.tools import roundtrip, row, stream, wire_of

RAW = ("none", "fp16", "bf16", "randomk", "topk", "threshold")  # their wires hold numbers as they are, inf included


def spoiled(wire: torch.Tensor, flips: list[tuple[int, int]], cut: int) -> torch.Tensor:
    raw = wire.contiguous().view(torch.uint8).clone()
    for at, value in flips:
        raw[0, at % raw.shape[1]] = value
    raw = raw[:, : raw.shape[1] - cut] if cut > 0 else torch.nn.functional.pad(raw, (0, -cut))
    whole = raw.shape[1] // wire.element_size() * wire.element_size()
    return raw[:, :whole].contiguous().view(wire.dtype)


@pytest.mark.parametrize("name", COMPRESSORS)
@settings(max_examples=30)  # tests/fuzz tries more
@given(
    n=st.sampled_from([1, 2, 7, 37, 64]),
    flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
)
def test_flipped_bytes(name: str, n: int, flips: list[tuple[int, int]]):
    compressor = COMPRESSORS[name]
    wire = spoiled(wire_of(compressor, torch.arange(1.0, n + 1)[None] * 1.5 - 7), flips, 0)
    out = torch.zeros(1, n)
    try:
        compressor.decompress_add_(wire, out, 0.5, stream(compressor))
    except PayloadError:
        return
    assert out.shape == (1, n)
    if not name.startswith(RAW):
        assert bool(out.isfinite().all()), "scales are checked, and codes are in range"


@pytest.mark.parametrize(
    "name", [name for name in COMPRESSORS if not name.startswith(("none", "fp16", "bf16", "randomk"))]
)
@pytest.mark.parametrize("cut", [1, 2, 4, 9, -1, -4])
def test_cut_and_lengthened_wires_are_refused(name: str, cut: int):
    """Wires of plain numbers have one length, which the communicator knows."""
    compressor = COMPRESSORS[name]
    x = torch.arange(1.0, 65.0)[None]
    wire = wire_of(compressor, x)
    if compressor.varies and (cut < 0 or wire.shape[1] <= cut):
        return  # padding to the longest wire is legal
    with pytest.raises(PayloadError, match=r"truncated payload|end at|bits set"):
        compressor.decompress_add_(spoiled(wire, [], cut), torch.zeros_like(x), 1.0, stream(compressor))


@pytest.mark.parametrize("name", COMPRESSORS)
def test_pieces_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch):
    """Large rows are worked on in pieces; small pieces give the same bits as one."""
    compressor = COMPRESSORS[name]
    x = torch.randn(2, 1003, generator=torch.Generator().manual_seed(3))
    x[:, ::17] = 0

    def once() -> list[torch.Tensor]:
        rest = x.clone()
        wire = compressor.compress_(rest, stream(compressor), True)
        out = torch.zeros_like(x)
        compressor.decompress_add_(wire, out, 0.5, stream(compressor))
        return [wire, rest, out]

    whole = once()
    monkeypatch.setitem(split_spans.__globals__, "CHUNK", 80)
    monkeypatch.setattr("grace.kernels.selection.reference.CHUNK", 80)
    for a, b in zip(whole, once(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_rows_are_independent(name: str):
    """Several rows decode as each alone does; what is decoded is added, times the scale."""
    compressor: Compressor = COMPRESSORS[name]
    x = torch.randn(3, 41, generator=torch.Generator().manual_seed(5)) * torch.tensor([[1.0], [30.0], [0.0]])
    wire = compressor.compress_(x.clone(), stream(compressor), False)
    out = torch.full_like(x, 2.0)
    compressor.decompress_add_(wire, out, -0.5, stream(compressor))
    for i in range(3):
        alone = torch.zeros(1, 41)
        compressor.decompress_add_(wire[i : i + 1].clone(), alone, 1.0, stream(compressor))
        torch.testing.assert_close(out[i : i + 1], 2.0 - 0.5 * alone)


def test_bad_codes_and_scales_are_named():
    out = torch.zeros(1, 4)
    qsgd = grace.QSGD(levels=4)  # codes 0..8 in 4 bits
    wire = wire_of(qsgd, row(1, 2, 3, 4))
    bad = spoiled(wire, [(4, 0xF0)], 0)
    with pytest.raises(PayloadError, match=r"'codes' must be in \[0, 8\]"):
        qsgd.decompress_add_(bad, out, 1.0, stream(qsgd))
    nan = spoiled(wire, [(2, 0xC0), (3, 0x7F)], 0)
    with pytest.raises(PayloadError, match="'norms' must be finite"):
        qsgd.decompress_add_(nan, out, 1.0, stream(qsgd))
    ternary = grace.QSGD(levels=1)
    with pytest.raises(PayloadError, match="'codes'"):
        ternary.decompress_add_(spoiled(wire_of(ternary, row(1, 2, 3, 4)), [(4, 243)], 0), out, 1.0, None)
    signs = grace.SignSGD(zero="abstain")
    with pytest.raises(PayloadError, match="'votes'"):
        signs.decompress_add_(spoiled(wire_of(signs, row(1, 2, 3, 4)), [(0, 255)], 0), out, 1.0, None)
    scaled = grace.EFSignSGD()
    with pytest.raises(PayloadError, match="'scales' must be finite and not negative"):
        scaled.decompress_add_(spoiled(wire_of(scaled, row(1, 2, 3, 4)), [(3, 0xBF)], 0), out, 1.0, None)
    topk = grace.TopK(ratio=0.5, index="raw")
    with pytest.raises(PayloadError, match="'indices' must"):
        topk.decompress_add_(spoiled(wire_of(topk, torch.ones(1, 5)), [(12, 0xFF)], 0), torch.zeros(1, 5), 1.0, None)


@pytest.mark.parametrize("count", [-2, 5, 2**31 - 1, -(2**31)])
def test_bad_counts(count: int):
    threshold = grace.Threshold(v=2.5)
    wire = wire_of(threshold, row(1, 2, 3, 4))
    bad = wire.clone()
    bad[0, :4] = torch.tensor([count], dtype=torch.int32).view(torch.uint8)
    with pytest.raises(PayloadError, match=r"'count' must be in \[0, 5\)|truncated payload"):
        threshold.decompress_add_(bad, torch.zeros(1, 4), 1.0, None)


def test_roundtrip_of_the_tools():
    assert roundtrip(grace.Identity(), row(1, -2)) == ([1, -2], [0, 0])
