from __future__ import annotations

import pytest
import torch

from grace.compute import backends
from grace.kernels import E4M3, E5M2, encode_floats
from grace.methods.fp8 import FP8
from tests.unit.kernels import block_codecs as check

CODECS = [FP8(fmt=fmt, stochastic=stochastic) for fmt in ("e4m3", "e5m2") for stochastic in (False, True)]  # type: ignore[arg-type]


@check.needs_native
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_native_agrees_for_every_small_size(codec: FP8) -> None:
    check.assert_agrees(codec, range(1, 71, 2), rows=5, shifts=(1,))
    check.assert_agrees(FP8(codec.fmt, 7, codec.stochastic), range(1, 71, 9), rows=5)


@check.needs_native
@pytest.mark.parametrize("block", [1, 16, 333, 512, 4096, 5001, 20_000])
def test_native_agrees_for_every_block(block: int) -> None:
    check.assert_agrees(FP8(block=block), (4095, 9001), rows=5, shifts=(3,))
    check.assert_agrees(FP8(fmt="e5m2", block=block, stochastic=True), (9001,), rows=5)


@check.needs_native
def test_the_number_of_threads_changes_nothing() -> None:
    check.assert_agrees(FP8(stochastic=True), (600_011,), rows=1, count=2)


@pytest.mark.parametrize("kind", [E4M3, E5M2])
@pytest.mark.parametrize("target", backends.available())
def test_rounding_is_that_of_torch_around_every_middle(kind: object, target: str) -> None:
    grid = torch.arange(128, dtype=torch.uint8).view(kind.dtype).float()  # type: ignore[attr-defined]
    grid = grid[grid.isfinite()]
    middle = ((grid[1:] + grid[:-1]) / 2).view(torch.int32)
    near = torch.cat([(middle + d).view(torch.float32) for d in (-1, 0, 1)])
    x = torch.cat((near, grid, -near, -grid))[None]
    with backends.using(target):
        wire, _ = encode_floats(x, kind, x.shape[1], None)  # type: ignore[arg-type]
    assert wire[0, :4].clone().view(torch.float32) == 1
    assert torch.equal(wire[0, 4:], x[0].to(kind.dtype).view(torch.uint8))  # type: ignore[attr-defined]


def test_nonfinite_numbers_are_found() -> None:
    check.assert_flags_nonfinite(FP8(block=100))
    check.assert_flags_nonfinite(FP8(fmt="e5m2", stochastic=True))


def test_corrupted_wires_are_refused() -> None:
    check.assert_refuses(FP8(block=100), 250, [(12, 0x7F), (261, 0xFF)], "'codes' must be finite")
    check.assert_refuses(FP8(fmt="e5m2", block=100), 250, [(12, 0x7C), (261, 0xFD)], "'codes' must be finite")
    check.assert_refuses(FP8(block=100), 250, [(3, 0xFF), (11, 0xC0), (7, 0x7F)], "'scales'")
    check.assert_refuses_other_lengths(FP8())
