from __future__ import annotations

import pytest

from grace.methods.lpc import LPC
from tests.unit.kernels import block_codecs as check

CODECS = [LPC(), LPC(bits=2, clip=0.5), LPC(bits=8, clip=0.9, shrink=True), LPC(bits=3, shrink=True), LPC(nearest=True)]


@check.needs_native
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_native_agrees_for_every_small_size(codec: LPC) -> None:
    check.assert_agrees(codec, range(1, 71, 2), rows=5, shifts=(1,))


@check.needs_native
@pytest.mark.parametrize("block", [1, 7, 16, 333, 1024, 4096, 5001, 20_000])
@pytest.mark.parametrize("bits", [2, 4, 5, 8])
def test_native_agrees_for_every_block(block: int, bits: int) -> None:
    check.assert_agrees(LPC(bits=bits, block=block), (9001,), rows=5, shifts=(3,))


@check.needs_native
def test_the_number_of_threads_changes_nothing() -> None:
    check.assert_agrees(LPC(), (600_011,), rows=1, count=2)


def test_nonfinite_numbers_are_found() -> None:
    check.assert_flags_nonfinite(LPC(block=100))


def test_corrupted_wires_are_refused() -> None:
    for bits, last in ((8, 12 + 250), (4, 12 + 125)):
        check.assert_refuses(
            LPC(bits=bits, block=100), 250, [(12, 0), (last - 1, 0)], "'units'.*its codes, which must be in"
        )
    check.assert_refuses(LPC(block=100), 250, [(3, 0xFF), (11, 0xC0)], "'units'")
    check.assert_refuses_other_lengths(LPC())
