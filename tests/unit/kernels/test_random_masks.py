"""Random words, numbers and subsets, and what random-k does with them: native against the torch specification, to the bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from grace import kernels
from grace.compute import backends, native
from grace.random import Stream

STREAM = Stream(3, "randomk", "w", None, 2**31 + 7)  # a step beyond int32
SIZES = [*range(1, 71), 1000, 4095, 4096, 4097, 5001, 16385, 65537]
FAST = [name for name in backends.available() if name != "reference"]
pytestmark = pytest.mark.skipif(not FAST, reason=native.library())


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def same_everywhere(draw) -> None:
    """``draw`` returns the same bits whatever runs it."""
    with backends.using("reference"):
        expected = draw()
    for name in FAST:
        with backends.using(name):
            drawn = draw()
        for wanted, other in zip(expected, drawn, strict=True):
            assert (wanted.shape, wanted.dtype) == (other.shape, other.dtype)
            assert torch.equal(bits(wanted), bits(other)), name


def test_words_and_uniform_numbers() -> None:
    for n, first in itertools.product([0, *SIZES], (0, 5)):
        same_everywhere(lambda n=n, first=first: [STREAM.words(n, first=first), STREAM.uniform(n, first=first)])


def test_many_words(threads: None) -> None:
    same_everywhere(lambda: [STREAM.words(300_001), STREAM.uniform(600_003, first=2)])


def test_subsets() -> None:
    for n in SIZES:
        for k in {0, 1, n // 100, n // 3, n - 1, n}:
            same_everywhere(lambda n=n, k=k: [STREAM.subset(n, k)])


@pytest.mark.parametrize("n", [100_003, (1 << 20) - 1, (1 << 20) + 1, (1 << 32) - 1, 1 << 32, (1 << 40) + 3])
def test_subsets_of_many(n: int, threads: None) -> None:
    same_everywhere(lambda: [STREAM.subset(n, 40_000)])


@pytest.mark.parametrize("n", [1, 7, 64, 4096, 4097, 50_001])
def test_taking_and_adding(n: int, threads: None) -> None:
    source = torch.Generator().manual_seed(n)
    x, y = torch.randn(3 * n + 1, generator=source)[1:].view(3, n), torch.randn(3, n, generator=source)
    for k in {0, 1, n // 3, n}:

        def draw(k: int = k) -> list[torch.Tensor]:
            rows, out = x.clone(), y.clone()
            wires = [kernels.take_subset(rows, k, STREAM), kernels.take_subset(rows, k, STREAM, -0.37)]
            kernels.add_subset([*wires, wires[0]], out, 0.3, STREAM)
            return [*wires, rows, out]

        same_everywhere(draw)
        index = STREAM.subset(n, k)
        taken, _, rows, _ = draw()
        assert torch.equal(taken, x[:, index])
        left = x.clone()
        left[:, index] *= -0.37
        assert torch.equal(rows, left)


@pytest.mark.parametrize("n", [*range(1, 40), 4097, 2_100_013])
@pytest.mark.parametrize("offset", [0, 1])
def test_sums(n: int, offset: int, threads: None) -> None:
    x, memory = torch.randn(n + 3)[offset : n + offset], torch.randn(n)
    for name in FAST:
        with backends.using(name):
            for added, expected in ((memory, x + memory), (None, x)):
                out = torch.empty(n + 3)[3 - offset : 3 - offset + n]
                assert kernels.sum_finite(x, added, out)
                assert torch.equal(out, expected)
                assert kernels.sum_finite(out, added, out), "in place"
                assert torch.equal(out, expected if added is None else expected + added)
            for bad in (torch.inf, -torch.inf, torch.nan):
                for at in {0, n // 2, n - 1}:
                    spoilt = x.clone()
                    spoilt[at] = bad
                    assert not kernels.sum_finite(spoilt, memory, torch.empty(n))
                    if n > 100:
                        break
