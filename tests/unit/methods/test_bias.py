"""Bias that random numbers of 16 bits leave: the exact mean of C(x), over every number that a stream can draw, beside the
bound.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.compute import backends
from grace.contract.compressor import Compressor
from grace.random import Stream

EVERY = 1 << 16  # numbers that a stream can draw


class Exhaustive(Stream):
    """A stream that draws each of its numbers exactly once from place 1 on. Place 0 is for the norm."""

    def lanes(self, n: int, device: Any = "cpu", first: int = 0) -> Tensor:
        return (torch.arange(first, first + n, dtype=torch.int32) - 1) % EVERY

    def uniform(self, n: int, device: Any = "cpu", first: int = 0) -> Tensor:
        return (self.lanes(n, device, first).float() + 0.5) / EVERY


def mean(compressor: Compressor, x: float) -> float:
    """E C(x) for a number in a block whose largest is 1."""
    rows = torch.cat((torch.ones(1), torch.full((EVERY,), x)))[None]
    rng = Exhaustive(0, compressor.id, "x", 0, 0)
    out = torch.zeros(rows.shape)
    with backends.using("reference"):
        compressor.decompress_add_(compressor.compress_(rows.clone(), rng, False), out, 1.0, rng)
    return float(out[0, 1:].double().mean())


WHOLE = EVERY + 1  # one block for all
COMPRESSORS = [
    grace.QSGD(levels=1, bucket=WHOLE), grace.QSGD(bits=4, bucket=WHOLE), grace.QSGD(bits=8, bucket=WHOLE),
    grace.TernGrad(bucket=WHOLE), grace.LPC(bits=4, block=WHOLE), grace.LPC(bits=8, block=WHOLE), grace.Natural(),
    grace.Natural(bits=9), grace.FP8(block=WHOLE, stochastic=True),
]  # fmt: skip
SHARES = (0.3, 0.9, 1e-2, 1e-3, 1.5 * 2.0**-16, 2.0**-16, 0.9 * 2.0**-17, 2.0**-18, 1e-7)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_the_bias_is_within_what_is_declared(compressor: Compressor) -> None:
    facts = compressor.facts(WHOLE)
    assert facts.unbiased
    assert 0 < facts.bias <= 2.0**-17
    for x in SHARES:
        assert abs(mean(compressor, x) - x) <= facts.bias + 2.0**-22 * x


@pytest.mark.parametrize("levels", [1, 7])
def test_numbers_below_half_a_step_of_the_random_numbers_never_travel(levels: int) -> None:
    """And the bound is sharp."""
    compressor, step = grace.QSGD(levels=levels, bucket=WHOLE), 1 / levels
    assert mean(compressor, 0.99 * 2.0**-17 * step) == 0.0
    assert mean(compressor, 1.01 * 2.0**-17 * step) == pytest.approx(2.0**-16 * step)
    assert compressor.facts(WHOLE).bias == 2.0**-17 * step


def test_the_bound_counts_the_norm_that_is_used() -> None:
    linf, l2 = grace.QSGD(bits=4, bucket=64), grace.QSGD(bits=4, bucket=64, norm="l2")
    assert l2.facts(1000).bias == 8 * linf.facts(1000).bias
    assert grace.QSGD(shrink=True).facts(1000).bias == 0
