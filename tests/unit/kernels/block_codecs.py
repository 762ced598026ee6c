"""Shared parts of the tests of the block codecs: every native target does what the reference does, to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from grace.compute import backends
from grace.contract.compressor import Fused
from grace.errors import PayloadError
from grace.random import Stream
from tests.unit.kernels.native_checks import TARGETS as TARGETS
from tests.unit.kernels.native_checks import needs_native as needs_native
from tests.unit.kernels.native_checks import with_threads as threads

RNG = Stream(seed=3, method="codec", tensor="w", rank=1, step=9)


def numbers(b: int, n: int, seed: int = 0) -> Tensor:
    """Heavy tails, zeros, and in each row another magnitude, from subnormal to huge."""
    made = torch.Generator().manual_seed(1000 * n + seed)
    x = torch.randn(b, n, generator=made) * torch.randn(b, n, generator=made).mul_(2).exp_()
    x *= 10.0 ** torch.tensor([[0.0], [-30.0], [-42.0], [30.0], [-25.0]])[(torch.arange(b) + n) % 5]
    return x.mul_(torch.rand(b, n, generator=made) > 0.1).clamp_(-1e38, 1e38)


def unaligned(x: Tensor, by: int) -> Tensor:
    """The same numbers, so many floats behind an aligned address."""
    room = torch.empty(x.numel() + by)
    return room[by:].view(x.shape).copy_(x)


def results(codec: Fused, x: Tensor, memory: Tensor, shift: int = 0) -> list[Tensor]:
    """Wires, rests and sums of everything that a codec can do."""
    rest = unaligned(torch.zeros_like(x), shift)
    wire, finite = codec.encode_(unaligned(x, shift), RNG, unaligned(memory, shift), rest)
    alone, fine = codec.encode_(unaligned(x, shift), RNG)
    own = unaligned(x, shift)
    again, _ = codec.encode_(own, RNG, None, own)
    assert finite
    assert fine
    assert torch.equal(again, alone)
    out = unaligned(torch.ones_like(x), shift)
    codec.aggregate_([wire, alone] * 4 + [wire], out, 0.125, RNG)
    more = unaligned(x / 2, shift)
    codec.sum_([alone, wire], more, -0.3, RNG, True)
    return [wire, alone, rest, own, out, more]


def assert_agrees(
    codec: Fused, sizes: Iterable[int], rows: int = 2, shifts: Iterable[int] = (0,), count: int = 1
) -> None:
    for n in sizes:
        x, memory = numbers(rows, n), numbers(rows, n, 1) / 4
        with backends.using("reference"):
            want = results(codec, x, memory)
        for target in TARGETS:
            for shift in shifts:
                with backends.using(target), threads(count):
                    got = results(codec, x, memory, shift)
                for k, (a, b) in enumerate(zip(want, got, strict=True)):
                    assert torch.equal(a, b), (codec, n, target, shift, k)


def assert_flags_nonfinite(codec: Fused, sizes: Iterable[int] = (1, 17, 300, 5000)) -> None:
    """Wherever it is, in the numbers or in the memory; and the wire decodes, or is refused."""
    for target in backends.available():
        with backends.using(target):
            for n in sizes:
                for bad in (torch.nan, torch.inf, -torch.inf):
                    for at in {0, n // 2, n - 1}:
                        x, memory = torch.ones(1, n), torch.zeros(1, n)
                        x[0, at] = bad
                        rest = torch.empty(1, n)
                        assert not codec.encode_(x.clone(), RNG)[1], (target, n, bad, at)
                        wire, finite = codec.encode_(memory, RNG, x, rest)
                        assert not finite
                        with contextlib.suppress(PayloadError):
                            codec.aggregate_([wire], rest, 1.0, RNG)
                assert codec.encode_(torch.full((1, n), 3e38), RNG)[1]


def assert_refuses(codec: Fused, n: int, changes: Iterable[tuple[int, int]], match: str) -> None:
    """A wire of n numbers, in which this byte becomes this value, is refused by every target with the same message."""
    good = codec.encode_(numbers(1, n), RNG)[0]
    for at, value in changes:
        wire = good.clone()
        wire[0, at] = value
        for target in backends.available():
            with backends.using(target), pytest.raises(PayloadError, match=match):
                codec.aggregate_([good, wire, good], torch.empty(1, n), 1.0, RNG)


def assert_refuses_other_lengths(codec: Fused, n: int = 40) -> None:
    good = codec.encode_(numbers(2, n), RNG)[0]
    for target in backends.available():
        for wire in (good[:, :-1], torch.cat((good, good), 1)):
            with backends.using(target), pytest.raises(PayloadError):
                codec.aggregate_([good, wire], torch.empty(2, n), 1.0, RNG)


def assert_fill_says_nothing(wire: Tensor, fill: int, decode: Callable[[Tensor], Tensor], target: str) -> None:
    """Bits of the last byte that belong to no code, ``fill``, change nothing."""
    filled = wire.clone()
    filled[..., -1] |= fill
    with backends.using(target):
        assert torch.equal(decode(filled), decode(wire))
