"""Rounding to tables: the native kernels against the torch functions, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grace.compute import backends
from grace.kernels import block_count, entry_means, round_to_table, sum_entries, sum_means
from grace.methods.common.integer_table import choose_table
from tests.unit.kernels.native_checks import TARGETS, needs_native, offset, same_bits, with_threads

TABLES = [choose_table(4, False), choose_table(3, False), choose_table(2, True), choose_table(4, True), (0, 1)]
SIZES = [*range(1, 301), 1023, 1024, 1025, 40_001]


def given(n: int, block: int, table: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers, their bounds and random numbers: usual ones, blocks of zeros, tiny bounds, numbers on the table's entries."""
    source = torch.Generator().manual_seed(n * 31 + block)
    bounds = torch.rand(1, block_count(n, block), generator=source) * torch.randint(
        -130, 120, (1, block_count(n, block)), generator=source
    ).float().exp2().clamp_min(0)
    bounds[torch.rand(bounds.shape, generator=source) < 0.1] = 0.0
    wide = bounds.repeat_interleave(block, dim=1)[:, :n]
    share = torch.randn(1, n, generator=source) / 2
    entries = torch.tensor(table)[torch.randint(len(table), (1, n), generator=source)] * 2 / table[-1] - 1
    share = torch.where(torch.rand(1, n, generator=source) < 0.3, entries, share)
    u = torch.rand(1, n, generator=source)
    u[torch.rand(1, n, generator=source) < 0.05] = 0.0
    return (share * wide).contiguous(), bounds, u


@needs_native
@pytest.mark.parametrize("table", TABLES, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_native_has_the_bits_of_torch(target: str, table: tuple[int, ...]) -> None:
    for n in SIZES if table == TABLES[0] else SIZES[::5]:
        block = (16, 64, 1024, 2)[n % 4]
        y, bounds, u = given(n, block, table)
        with backends.using("reference"):
            codes = round_to_table(y, bounds, block, table, u)
            three = torch.cat([codes, codes.flip(1), torch.zeros_like(codes)])
            sums = sum_entries(three, table)
            means = sum_means(sums, bounds, block, 2 / (3 * table[-1])), entry_means(codes, bounds, block, table)
        with backends.using(target), with_threads(1 + n % 2):
            at = n % 3
            assert same_bits(round_to_table(offset(y, at), bounds, block, table, offset(u, at)), codes), n
            assert same_bits(sum_entries(offset(three, at), table), sums), n
            assert same_bits(sum_means(sums, bounds, block, 2 / (3 * table[-1])), means[0]), n
            assert same_bits(entry_means(offset(codes, at), bounds, block, table), means[1]), n


@needs_native
@pytest.mark.parametrize("target", TARGETS)
def test_threads_change_nothing(target: str) -> None:
    table, n = TABLES[0], 600_001
    y, bounds, u = given(n, 1024, table)
    with backends.using("reference"):
        codes = round_to_table(y, bounds, 1024, table, u)
        means = entry_means(codes, bounds, 1024, table)
    for threads in (1, 2):
        with backends.using(target), with_threads(threads):
            assert same_bits(round_to_table(y, bounds, 1024, table, u), codes)
            assert same_bits(entry_means(codes, bounds, 1024, table), means)


def test_by_hand() -> None:
    """T = 0, 1, 3 and A = 2: y = 1 is v = 2.25, which is 1 or 3; y = -5 is clipped to 0; y = 2 is 3."""
    y, table = torch.tensor([[1.0, 1.0, -5.0, 2.0]]), (0, 1, 3)
    codes = round_to_table(y, torch.tensor([[2.0]]), 4, table, torch.tensor([[0.6, 0.7, 0.0, 0.99]]))
    assert codes.tolist() == [[2, 1, 0, 2]]
    assert sum_entries(torch.cat([codes, codes]), table).tolist() == [[6, 2, 0, 6]]
    said = entry_means(codes, torch.tensor([[2.0]]), 4, table)
    torch.testing.assert_close(said, torch.tensor([[2.0, -2 / 3, -2.0, 2.0]]))
    assert torch.equal(sum_means(torch.tensor([[6]]), torch.tensor([[2.0]]), 4, 2 / 6), torch.tensor([[2.0]]))
