from __future__ import annotations

import pytest
import torch

from grace.compute import backends
from grace.kernels import encode_powers, sum_powers
from grace.methods.natural import Natural
from tests.unit.kernels import block_codecs as check


@check.needs_native
@pytest.mark.parametrize("bits", [4, 8])
def test_native_agrees_for_every_small_size(bits: int) -> None:
    check.assert_agrees(Natural(bits=bits), range(1, 71), rows=5, shifts=(1,))
    check.assert_agrees(Natural(bits=bits, block=7), range(0, 71, 3), rows=5)


@check.needs_native
@pytest.mark.parametrize("block", [1, 3, 16, 64, 333, 1024, 2048, 5001, 20_000])
def test_native_agrees_for_every_block(block: int) -> None:
    check.assert_agrees(Natural(bits=8, block=block), (4095, 9001), rows=5, shifts=(3,))
    check.assert_agrees(Natural(bits=4, block=min(block, 2048)), (4095, 9001), rows=5, shifts=(2,))


@check.needs_native
@pytest.mark.parametrize("count", [2, 4])
def test_the_number_of_threads_changes_nothing(count: int) -> None:
    for codec in (Natural(), Natural(bits=4)):
        check.assert_agrees(codec, (600_011,), rows=1, count=count)


@pytest.mark.parametrize("target", backends.available())
@pytest.mark.parametrize("n", [1, 7, 9, 15, 17, 31, 33, 65])
def test_what_fills_the_last_byte_says_nothing(n: int, target: str) -> None:
    """Four bits, in a range that begins below float32's: 1 to 3 would be no codes."""
    x = torch.full((1, n), 2.0**-122)

    def decode(wire: torch.Tensor) -> torch.Tensor:
        sum_powers([wire], out := torch.empty_like(x), 4, 100, 1.0)
        return out

    wire = encode_powers(x, 4, 100, check.RNG)[0]
    check.assert_fill_says_nothing(wire, 0x10, decode, target)
    with backends.using(target):
        assert torch.equal(decode(wire), x)


def test_nonfinite_numbers_are_found() -> None:
    for codec in (Natural(), Natural(bits=4), Natural(bits=9)):
        check.assert_flags_nonfinite(codec)


def test_corrupted_wires_are_refused() -> None:
    check.assert_refuses(Natural(), 250, [(1, 127), (250, 255)], "'codes'")
    # a range that lies below float32, with codes in it
    check.assert_refuses(Natural(), 250, [(0, 0x80)], "'exponents'")
    check.assert_refuses(Natural(bits=4, block=50), 250, [(0, 0x80), (4, 0x80)], "'exponents'")
    for bits in (4, 8, 9):
        check.assert_refuses_other_lengths(Natural(bits=bits))
