"""Rounding of rotated numbers to tables: the native kernels against the torch functions, to the bit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grace.compute import backends, native
from grace.errors import PayloadError
from grace.kernels import decode_entries, encode_entries, pack, rotate_norms, sum_entries, unpack
from grace.kernels.lookup_table.reference import round_to_table
from grace.methods.common.integer_table import choose_table, count_sum_bits
from grace.random import Stream
from tests.unit.kernels import block_codecs as check
from tests.unit.kernels.native_checks import TARGETS, needs_native, offset, same_bits, with_threads

TABLES = [choose_table(4, False), choose_table(3, False), choose_table(2, True), choose_table(4, True), (0, 1)]
SIZES = [*range(1, 71), *range(71, 301, 5), 1023, 1024, 1025, 70_000]
BLOCKS, WORLDS = (16, 64, 1024, 2, 8, 4096, 65536), (1, 2, 3, 8, 9, 40)
SHARED, PRIVATE = Stream(5, "R", "w", None, 7), Stream(5, "R", "w", 1, 7)


def results(n: int, block: int, table: tuple[int, ...], world: int, at: int = 0) -> list[Tensor]:
    """All that a worker computes of n numbers whose magnitudes go from zero to huge, with and without a memory."""
    x, memory = offset(check.numbers(1, n), at), offset(check.numbers(1, n, 1) / 4, at)
    y, rest, mean = (offset(torch.full((1, n), math.nan), at) for _ in range(3))
    norms, finite = rotate_norms(x, block, SHARED, y, memory)
    assert finite
    bounds = (norms / math.sqrt(block) * 2).clamp_max(1e38)
    bounds[bounds < 1e-38] = 0.0
    codes = encode_entries(y, bounds, block, table, world, PRIVATE, SHARED, x, memory, rest)
    own = x.clone()
    again = encode_entries(y, bounds, block, table, world, PRIVATE, SHARED, own, None, own)
    assert torch.equal(again, codes)
    assert torch.equal(encode_entries(y, bounds, block, table, world, PRIVATE, SHARED), codes)
    bits = count_sum_bits(table[-1], world)
    apart = torch.cat([codes] * 2, dim=1)[:, : codes.shape[1]]
    sums = sum_entries(apart, table, math.ceil(n / world), bits)
    answer = torch.cat([sums.repeat(world, 1)] * 2, dim=1)[:, : sums.shape[1]]  # wires that lie apart
    decode_entries(answer, bits, table[-1], bounds, mean, block, SHARED)
    return [norms, y, codes, rest, own, sums, mean]


@needs_native
def test_native_has_the_bits_of_torch() -> None:
    for n in SIZES:
        of = BLOCKS[n % 7], TABLES[n % 5], WORLDS[n % 6]
        with backends.using("reference"):
            want = results(n, *of)
        for target in TARGETS:
            with backends.using(target), with_threads(1 + n % 2):
                got = results(n, *of, at=n % 3)
            for k, (a, b) in enumerate(zip(want, got, strict=True)):
                assert same_bits(a, b), (n, of, target, k)


@needs_native
@pytest.mark.parametrize("border", [512, 1024, 2048, 32_768, 65_536, 524_288])
def test_native_has_the_bits_of_torch_around_borders(border: int) -> None:
    """Borders of what is rounded together, of blocks, of tasks, and of what is stored past the caches; with a memory, and
    without.
    """
    for n in (border - 1, border, border + 1):
        of = 1024, TABLES[n % 3], WORLDS[n % 5]
        with backends.using("reference"):
            want = results(n, *of)
        for target in TARGETS:
            for at in (0, 1) if n < border else (0,):
                with backends.using(target), with_threads(1):
                    got = results(n, *of, at=at)
                assert [same_bits(a, b) for a, b in zip(want, got, strict=True)] == [True] * 7, (n, of, target, at)


@needs_native
@pytest.mark.parametrize("target", TARGETS)
def test_threads_change_nothing(target: str) -> None:
    n = 600_001  # enough for two threads, and for stores past the caches
    with backends.using("reference"):
        want = results(n, 1024, TABLES[0], 7)
    for threads in (1, 2):
        with backends.using(target), with_threads(threads):
            for k, (a, b) in enumerate(zip(want, results(n, 1024, TABLES[0], 7), strict=True)):
                assert same_bits(a, b), (threads, k)


def test_by_hand() -> None:
    """T = 0, 1, 3 and A = 2: y = 1 is v = 2.25, which is 1 or 3; y = -5 is clipped to 0; y = 2 is 3."""
    y, u = torch.tensor([[1.0, 1.0, -5.0, 2.0]]), torch.tensor([[0.6, 0.7, 0.0, 0.99]])
    assert round_to_table(y, torch.tensor([[2.0]]), 4, (0, 1, 3), u).tolist() == [[2, 1, 0, 2]]
    for target in backends.available():
        with backends.using(target):
            codes = pack(torch.tensor([[0, 1, 2, 3], [3, 3, 0, 3]], dtype=torch.uint8), 2)
            sums = sum_entries(codes, (0, 1, 3, 6), 4, 9)
            assert unpack(sums, 9, 4).tolist() == [[6, 7, 3, 12]]


@pytest.mark.parametrize("world", [1, 3, 40])
def test_a_sum_that_nobody_can_reach_is_refused_wherever_it_is(world: int) -> None:
    """Behind the last number, too, where chunks end with zeros."""
    n, g = 50, 30
    c, bits = math.ceil(n / world), count_sum_bits(g, world)
    for target in backends.available():
        with backends.using(target):
            for at in {0, 1, n - 1, world * c - 1}:
                sums = torch.full((world, c), g * world, dtype=torch.int32)
                bounds, out = torch.ones(1, 4), torch.empty(1, n)
                decode_entries(pack(sums, bits), bits, g, bounds, out, 16, SHARED)
                sums.view(-1)[at] += 1
                with pytest.raises(PayloadError, match="sums"):
                    decode_entries(pack(sums, bits), bits, g, bounds, out, 16, SHARED)


def test_nonfinite_numbers_are_found() -> None:
    for target in backends.available():
        with backends.using(target):
            for at in (0, 16, 69):
                x = torch.ones(1, 70)
                x[0, at] = math.inf
                assert not rotate_norms(x, 16, SHARED, torch.empty(1, 70))[1]
                assert not rotate_norms(torch.ones(1, 70), 16, SHARED, torch.empty(1, 70), x)[1]


@needs_native
def test_a_kernel_that_draws_other_numbers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: codes that are as good, of the other stream's numbers."""
    with backends.using("reference"):
        want = results(300, 64, TABLES[0], 3)
    with backends.using(TARGETS[-1]):
        honest = native.c.encode_entries
        monkeypatch.setattr(native.c, "encode_entries", lambda *a: honest(*a[:9], *a[15:18], *a[12:]))
        got = results(300, 64, TABLES[0], 3)
    assert [same_bits(a, b) for a, b in zip(want, got, strict=True)][:3] == [True, True, False]


@needs_native
def test_a_kernel_that_forgets_the_memory_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: a rest of the gradient alone."""
    with backends.using("reference"):
        want = results(1025, 1024, TABLES[0], 3)
    with backends.using(TARGETS[-1]):
        honest = native.c.encode_entries
        monkeypatch.setattr(native.c, "encode_entries", lambda *a: honest(*a[:13], None, *a[14:]))
        got = results(1025, 1024, TABLES[0], 3)
    assert [same_bits(a, b) for a, b in zip(want, got, strict=True)][:4] == [True, True, True, False]
