from __future__ import annotations

import pytest
import torch

from grace.compute import backends
from grace.kernels.affine.native import encode_affine
from grace.methods.minmax import MinMax
from tests.unit.kernels import block_codecs as check

CODECS = [
    MinMax(),
    MinMax(bits=2, block=2),
    MinMax(bits=8, nearest=True),
    MinMax(bits=3, block=16),
    MinMax(nearest=True),
]


@check.needs_native
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_native_agrees_for_every_small_size(codec: MinMax) -> None:
    check.assert_agrees(codec, range(1, 71, 2), rows=5, shifts=(1,))


@check.needs_native
@pytest.mark.parametrize("block", [2, 8, 16, 128, 1024, 4096])
@pytest.mark.parametrize("bits", [2, 4, 5, 8])
def test_native_agrees_for_every_block(block: int, bits: int) -> None:
    check.assert_agrees(MinMax(bits=bits, block=block), (9001,), rows=5, shifts=(3,))


@check.needs_native
def test_the_number_of_threads_changes_nothing() -> None:
    check.assert_agrees(MinMax(), (600_011,), rows=1, count=2)


@check.needs_native
def test_ends_of_blocks_agree() -> None:
    """Zeros of both signs, ties, numbers whose difference overflows, and steps that are no normal numbers."""
    most = torch.finfo(torch.float32).max
    rows = torch.tensor([
        [-0.0, 0.0, -0.0, -0.0, 0.5, 1.5, 2.5, 15.0], [most, -most, 1.0, 0.0, most, most, most, most],
        [1.0, 1.0 + 2.0**-23, 1.0, 1.0, 2.0**-126, 0.0, 2.0**-130, -0.0], [-most, -most, -most, -1.0, 1e-45, 0.0, -1e-45, 0.0],
    ])  # fmt: skip
    for codec in (MinMax(block=4), MinMax(block=8, nearest=True), MinMax(bits=8, block=2), MinMax(bits=2, block=8)):
        with backends.using("reference"):
            want = check.results(codec, rows, torch.zeros_like(rows))
        assert all(bool(tensor.isfinite().all()) for tensor in want)
        for target in check.TARGETS:
            with backends.using(target):
                for a, b in zip(want, check.results(codec, rows, torch.zeros_like(rows)), strict=True):
                    assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), (codec, target)


@check.needs_native
def test_native_blocks_of_other_sizes_are_those_of_shorter_rows() -> None:
    """The native kernel takes blocks of any size, also of several pieces; a row shorter than one is one block."""
    x = check.numbers(1, 9001)
    for block in (7, 5001, 9001):
        with backends.using(check.TARGETS[-1]):
            wire, _ = encode_affine(x, 8, block, None)
            for j in range(0, 9001, block):
                part, _ = encode_affine(x[:, j : j + block].contiguous(), 8, 1 << 20, None)
                head, codes = 8 * (j // block), 8 * -(-9001 // block) + j
                assert torch.equal(wire[0, head : head + 8], part[0, :8])
                assert torch.equal(wire[0, codes : codes + block], part[0, 8:])


def test_nonfinite_numbers_are_found() -> None:
    check.assert_flags_nonfinite(MinMax(block=128))


def test_corrupted_wires_are_refused() -> None:
    for bits in (8, 4):  # in the ranges: exponents of the first and the last block, a sign of a step
        changes = [(3, 0x7F), (3, 0xFF), (7, 0x7F), (7, 0xFF), (11, 0x7F), (15, 0xC0)]
        check.assert_refuses(MinMax(bits=bits, block=128), 250, changes, "'ranges' must be finite")
    check.assert_refuses_other_lengths(MinMax())
