"""Velocities: the native kernels against the torch functions, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grace.compute import backends
from grace.errors import InputError
from grace.kernels import accelerate, forget_sent
from tests.unit.kernels.native_checks import TARGETS, needs_native, offset, same_bits, with_threads

SIZES = [*range(71), 1000, 40_001, 3_000_000]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def both(n: int, nesterov: bool, by: int = 0) -> tuple[Tensor, Tensor]:
    """The successor, and its velocities without those of every third number, which was sent."""
    x, memory = offset(drawn(n, seed=1), by), offset(drawn(2, n, seed=2), by)
    out = offset(torch.full((2, n), torch.nan), by)
    accelerate(x, memory, 0.9, nesterov, out)
    rest, u = out[1].clone(), out[0].clone()
    rest[::3] = 0
    forget_sent(u, memory[1].contiguous(), x if nesterov else None, rest)
    return out, u


@needs_native
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_native_has_the_bits_of_torch(target: str, nesterov: bool) -> None:
    for n in SIZES:
        with backends.using("reference"):
            expected = both(n, nesterov)
        for by, threads in ((0, 1), (1, 3)):
            with backends.using(target), with_threads(threads):
                assert all(same_bits(a, b) for a, b in zip(both(n, nesterov, by), expected, strict=True)), (n, by)


@pytest.mark.parametrize("nesterov", [False, True])
def test_their_formulas(nesterov: bool) -> None:
    (u, v), left = both(10, nesterov)
    x, (old_u, old_v) = drawn(10, seed=1).double(), drawn(2, 10, seed=2).double()
    expected = 0.9 * (old_u + x) if nesterov else 0.9 * old_u + x
    torch.testing.assert_close(u.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(v.double(), old_v + expected + (x if nesterov else 0), rtol=1e-6, atol=1e-6)
    assert torch.equal(left[::3], torch.zeros(4))
    assert torch.equal(left[1::3], u[1::3])


def test_other_types_go_through_torch() -> None:
    x, memory = drawn(9, seed=3).half(), drawn(2, 9, seed=4)
    out = torch.empty(2, 9)
    accelerate(x, memory, 0.5, False, out)
    torch.testing.assert_close(out[0], 0.5 * memory[0] + x.float())


@needs_native
def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="memory"):
        accelerate(torch.zeros(3), torch.zeros(2, 4), 0.9, False, torch.zeros(2, 3))
    with pytest.raises(InputError, match="rest"):
        forget_sent(torch.zeros(3), torch.zeros(3), None, torch.zeros(4))
