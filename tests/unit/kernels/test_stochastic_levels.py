from __future__ import annotations

import struct

import pytest
import torch

from grace.compute import backends
from grace.kernels import Levels, block_divide, block_sum, dequantize_sum, nearest, quantize
from grace.methods.qsgd import QSGD
from tests.unit.kernels import block_codecs as check

LEVELS = [1, 2, 3, 7, 9, 31, 40, 127]  # trits, and 3 to 8 bits


@check.needs_native
@pytest.mark.parametrize("s", LEVELS)
def test_native_agrees_for_every_small_size(s: int) -> None:
    """Every small size of trits and 4 bits; of the others every third size, which all meet another one."""
    step = 1 if s in (1, 7) else 3
    check.assert_agrees(QSGD(levels=s, bucket=24), range(LEVELS.index(s) % step, 71, step), shifts=(1,))
    check.assert_agrees(QSGD(levels=s, bucket=5, norm="l2", shrink=True), range(1, 71, 8), rows=3)


@check.needs_native
@pytest.mark.parametrize("s", [1, 3, 7, 127])
@pytest.mark.parametrize("block", [1, 2, 16, 64, 333, 1024, 4096, 5001, 20_000])
def test_native_agrees_for_every_block(s: int, block: int) -> None:
    check.assert_agrees(QSGD(levels=s, bucket=block), (4095, 9001), shifts=(3,))


@check.needs_native
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_number_of_threads_changes_nothing(count: int) -> None:
    for s, block in ((7, 256), (1, 1000), (127, 1 << 20), (7, 9999)):
        check.assert_agrees(QSGD(levels=s, bucket=block), (600_011,), rows=1, count=count)


@pytest.mark.parametrize("target", backends.available())
@pytest.mark.parametrize("s", [*LEVELS, 255, 32767])
def test_the_largest_number_zeros_and_signs_are_exact(s: int, target: str) -> None:
    x, levels = check.numbers(5, 300), Levels(s, 300)
    with backends.using(target):
        out = torch.empty_like(x)
        dequantize_sum([quantize(x, levels, check.RNG)[0]], out, levels, 1.0)
        minus = torch.empty_like(x)
        dequantize_sum([quantize(-x, levels, check.RNG)[0]], minus, levels, 1.0)
    assert torch.equal(minus, -out)
    assert bool((out[x == 0] == 0).all())
    top = x.abs().amax(1)
    live = top >= 2.0**-126
    assert not out[~live].any()
    at = x.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(out.gather(1, at)[live], x.gather(1, at)[live], rtol=3e-7, atol=0)
    assert bool(((out - x).abs() <= top[:, None] / s * 1.001)[live].all())


@pytest.mark.parametrize("target", backends.available())
@pytest.mark.parametrize("n", [1, 7, 9, 15, 17, 31, 33, 65])
def test_what_fills_the_last_byte_says_nothing(n: int, target: str) -> None:
    """Four bits with s = 5: 11 to 15 are no codes."""
    x = check.numbers(1, n)

    def decode(wire: torch.Tensor) -> torch.Tensor:
        dequantize_sum([wire], out := torch.empty_like(x), Levels(5, 100), 1.0)
        return out

    check.assert_fill_says_nothing(quantize(x, Levels(5, 100), check.RNG)[0], 0xF0, decode, target)


def test_nonfinite_numbers_are_found() -> None:
    for codec in (QSGD(), QSGD(bits=8, bucket=7), QSGD(levels=1, bucket=4999, norm="l2")):
        check.assert_flags_nonfinite(codec)


def test_corrupted_wires_are_refused() -> None:
    eight = QSGD(bits=8, bucket=100)
    check.assert_refuses(eight, 250, [(12, 255), (12 + 249, 255)], r"'codes' must be in \[0, 254\]")
    check.assert_refuses(QSGD(bits=4, bucket=100), 250, [(12, 0xF0), (12, 0x0F), (12 + 124, 0xFF)], r"\[0, 14\]")
    check.assert_refuses(QSGD(levels=1, bucket=100), 250, [(12, 243), (12 + 49, 255)], r"\[0, 242\]")
    check.assert_refuses(QSGD(levels=9, bucket=3), 7, [(12, 31)], r"\[0, 18\]")
    for norm in (-1.0, float("nan"), float("inf")):
        raw = struct.pack("<f", norm)
        check.assert_refuses(eight, 250, [(11, raw[3])] if norm == -1.0 else [(11, 0xFF)], "'norms' must be finite")
    for bits in (2, 4, 5, 8):
        check.assert_refuses_other_lengths(QSGD(bits=bits))


def test_block_sum_is_exact_where_float32_is_not() -> None:
    rows = torch.tensor([[3e38, 3e38, 1.0], [1e8, 1.0, -1e8]])
    assert block_sum(rows, 2).tolist() == [[2 * rows[0, 0].double().item(), 1.0], [1e8 + 1, -1e8]]
    assert block_sum(rows > 2, 3).tolist() == [[2.0], [1.0]]


def test_a_scale_that_is_as_good_as_zero_makes_zeros() -> None:
    rows = torch.tensor([[2.0, -4.0, 1e-40, 3.0, 0.0]])
    scale, y = block_divide(rows, torch.tensor([[4.0, 1e-39, 0.0]]), 2)
    assert scale.tolist() == [[4, 0, 0]]
    assert y.tolist() == [[0.5, -1, 0, 0, 0]]


def test_nearest_agrees_with_a_search_and_breaks_ties_downwards() -> None:
    book = torch.tensor([-1.0, 0.0, 0.5, 4.0])
    values = torch.cat((torch.linspace(-3, 6, 997), torch.tensor([-0.5, 0.25, 2.25])))
    want = (values[:, None] - book).abs().argmin(1)
    assert torch.equal(nearest(values.view(1, -1), book)[0], want)
