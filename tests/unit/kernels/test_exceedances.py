"""Tails, against definitions in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from grace.compute import backends
from grace.kernels import tail_sum
from tests.unit.kernels.native_checks import needs_native


@pytest.mark.parametrize("n", [1, 17, 4097, 20_000])
def test_tails_by_hand(n: int) -> None:
    row = torch.randn(n, generator=torch.Generator().manual_seed(n))
    for bound in (-1.0, 0.0, 0.5, 2.5, 1e300):
        above = [abs(x) for x in row.tolist() if abs(x) > bound]
        count, total = tail_sum(row, bound)
        assert count == len(above)
        assert total == pytest.approx(math.fsum(above), rel=1e-12)
    bound = float(row[-1].abs())
    assert tail_sum(row, bound)[0] == sum(abs(x) > bound for x in row.tolist()), "equal is not more"


@needs_native
def test_sums_have_one_order() -> None:
    row = torch.randn(70_001, generator=torch.Generator().manual_seed(5))
    for bound in (-1.0, 0.7):
        with backends.using("reference"):
            right = tail_sum(row, bound)
        assert tail_sum(row, bound) == right
