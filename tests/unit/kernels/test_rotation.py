from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from grace.compute import backends
from grace.contract.compressor import Fused
from grace.errors import PayloadError
from grace.kernels import hadamard, rotate_blocks, rotate_blocks_back
from grace.methods.drive import DRIVE
from grace.methods.eden import EDEN
from grace.methods.rht import RHT
from grace.random import Stream
from tests.unit.kernels import block_codecs as check

SHARED = [DRIVE(rotation="shared"), EDEN(bits=3, scale="mse", rotation="shared")]
CODECS = [DRIVE(), DRIVE(scale="mse"), *(EDEN(bits=bits) for bits in (2, 3, 4)), EDEN(scale="mse"), *SHARED]  # type: ignore[arg-type]


def matrix(h: int) -> torch.Tensor:
    """Sylvester's matrix, by its recursion."""
    out = torch.ones(1, 1, dtype=torch.float64)
    while out.shape[0] < h:
        out = torch.cat((torch.cat((out, out), 1), torch.cat((out, -out), 1)), 0)
    return out / h**0.5


@pytest.mark.parametrize(("n", "block", "pieces"), [
    (4, 4, [4]), (64, 64, [64]), (300, 128, [128, 128, 32, 0]), (100, 64, [64, 32, 0]), (31, 1024, [16, 0]),
    (15, 16, [0]), (1, 2, [0]), (7, 2, [2, 2, 2, 0]), (5, 4, [4, 0]), (1024, 1024, [1024]), (112, 1024, [64, 32, 16]),
])  # fmt: skip
def test_blocks_then_powers_of_two_then_nothing(n: int, block: int, pieces: list[int]) -> None:
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    want, at = x.double().clone(), 0
    for h in pieces:
        if h:
            want[:, at : at + h] = x[:, at : at + h].double() @ matrix(h)
            at += h
    got = hadamard(x, block)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(hadamard(got, block), x, rtol=1e-5, atol=1e-6)
    assert torch.equal(x, before)


def test_neither_the_largest_numbers_nor_the_smallest_overflow() -> None:
    for size in (torch.finfo(torch.float32).max, 1e38, 1e30):
        one_hot = torch.zeros(1, 64)
        one_hot[0, 5] = -size
        torch.testing.assert_close(hadamard(hadamard(one_hot, 64), 64), one_hot)
    full = torch.full((1, 64), torch.finfo(torch.float32).max)
    assert hadamard(full, 64)[0, 0] == torch.finfo(torch.float32).max
    assert bool(hadamard(full, 64).isfinite().all())
    tiny = torch.full((1, 16), 1e-42)
    torch.testing.assert_close(hadamard(tiny, 16)[0, 0], torch.tensor(4e-42), rtol=1e-2, atol=0)


@check.needs_native
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_native_agrees_for_every_small_size(codec: Fused) -> None:
    check.assert_agrees(replace(codec, block=16), (1, 2, 3, 15, 16, 17, 31, 33, 47, 48, 63, 64, 65, 100, 130), rows=5)
    check.assert_agrees(replace(codec, block=1024), range(1, 71, 3), rows=3, shifts=(1,))


@check.needs_native
@pytest.mark.parametrize("block", [2, 4, 8, 32, 64, 256, 1024, 4096, 65536])
def test_native_agrees_for_every_block(block: int) -> None:
    for codec in (EDEN(bits=1), EDEN(bits=3), EDEN(), EDEN(rotation="shared")):
        check.assert_agrees(replace(codec, block=block), (1023, 9001), rows=3, shifts=(3,))


@check.needs_native
def test_the_number_of_threads_changes_nothing() -> None:
    check.assert_agrees(EDEN(), (600_011,), rows=1, count=2)
    check.assert_agrees(EDEN(rotation="shared"), (600_011,), rows=1, count=2)
    check.assert_agrees(DRIVE(block=65536), (600_011,), rows=1, count=2)


@check.needs_native
def test_native_rotations_are_the_reference() -> None:
    rng = Stream(5, "R", "x", None, 7)
    for n, block in ((1, 2), (50, 8), (300, 16), (4097, 1024), (70_000, 65536), (70_000, 64)):
        x = check.numbers(5, n)
        x[0, n // 2] = torch.finfo(torch.float32).max
        with backends.using("reference"):
            want = hadamard(x, block), rotate_blocks(x, block, rng), rotate_blocks_back(x, block, rng)
        for target in check.TARGETS:
            with backends.using(target):
                got = hadamard(x, block), rotate_blocks(x, block, rng), rotate_blocks_back(x, block, rng)
            for a, b in zip(want, got, strict=True):
                assert torch.equal(a, b), (n, block, target)


def test_what_comes_back_is_what_went() -> None:
    x, rng = torch.randn(1, 3000, generator=torch.Generator().manual_seed(0)), Stream(5, "R", "x", None, 7)
    for target in backends.available():
        with backends.using(target):
            torch.testing.assert_close(
                rotate_blocks_back(rotate_blocks(x, 256, rng), 256, rng), x, rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("codec", [EDEN(), *SHARED, RHT()], ids=repr)
def test_the_sum_is_that_of_single_wires_to_rounding(codec: Fused) -> None:
    """Wires of a shared rotation are added up rotated, and rotated back once."""
    x = torch.randn(4, 1, 2077, generator=torch.Generator().manual_seed(1))
    wires = [codec.compress_(row.clone(), check.RNG, False) for row in x]
    together, one_by_one = torch.empty(1, 2077), torch.zeros(1, 2077)
    codec.aggregate_(wires, together, 0.25, check.RNG)
    for wire in wires:
        codec.decompress_add_(wire, one_by_one, 0.25, check.RNG)
    torch.testing.assert_close(together, one_by_one, rtol=1e-5, atol=1e-5)


def test_nonfinite_numbers_are_found() -> None:
    check.assert_flags_nonfinite(EDEN(block=64))
    check.assert_flags_nonfinite(DRIVE())


def test_corrupted_wires_are_refused() -> None:
    for codec, key in ((EDEN(block=64), 8), (EDEN(block=64, rotation="shared"), 0)):
        check.assert_refuses(codec, 250, [(key + 3, 0xFF), (key + 15, 0xC0)], "'scales'")  # NaN, and below zero
    check.assert_refuses_other_lengths(EDEN())
    wire = torch.zeros(1, 8 + 4 + 8, dtype=torch.uint8)  # float32's largest number, and codes of 0.13 or 2.7 times that
    wire[0, 8:12] = torch.tensor([torch.finfo(torch.float32).max]).view(torch.uint8)
    for target in backends.available():
        with backends.using(target):
            wire[0, 12:] = 0x88
            EDEN(block=16).aggregate_([wire], torch.empty(1, 16), 1.0, check.RNG)
            wire[0, 19] = 0xF8
            with pytest.raises(PayloadError, match="'scales' must be finite and not negative, and small enough"):
                EDEN(block=16).aggregate_([wire], torch.empty(1, 16), 1.0, check.RNG)
