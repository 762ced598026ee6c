"""Sums with a factor: the native kernel against the torch functions, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grace.compute import backends
from grace.kernels import add_scaled_
from tests.unit.kernels.native_checks import TARGETS, needs_native, offset, same_bits, with_threads

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SIZES = [*range(71), 1000, 40_001, 600_000]


def summands(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers of all magnitudes that the narrow types have, denormal ones and infinite ones too."""
    source = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=source) * torch.randint(-30, 18, (n,), generator=source).float().exp2()
    out = torch.randn(n, generator=source) * torch.randint(-30, 18, (n,), generator=source).float().exp2()
    return out, x.to(dtype)


def all_finite_halves() -> Tensor:
    """Every float16 that is a number, or infinite."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    return bits[~bits.isnan()]


@needs_native
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_native_has_the_bits_of_torch(target: str, dtype: torch.dtype) -> None:
    for n in SIZES:
        out, x = summands(n, dtype)
        for scale in (1.0, -1.0, 0.25, 1 / 3):
            with backends.using("reference"):
                expected = add_scaled_(out.clone(), x, scale)
            for by, threads in ((0, 1), (1, 3)):
                with backends.using(target), with_threads(threads):
                    assert same_bits(add_scaled_(offset(out, by), offset(x, by), scale), expected), (n, scale, by)


@needs_native
@pytest.mark.parametrize("target", TARGETS)
def test_every_half(target: str) -> None:
    x = all_finite_halves()
    with backends.using(target):
        assert same_bits(add_scaled_(torch.zeros(len(x)), x, 0.3), x.float() * 0.3 + 0.0)


def test_the_product_is_rounded_first() -> None:
    """1 + e, times 1 + e, is 1 + 2 e + e^2: the square is lost in the product, where one rounding would keep it."""
    e = 2.0**-13
    out = torch.full((100,), -(1 + 2 * e))
    assert not add_scaled_(out, torch.full((100,), 1 + e), 1 + e).any()


def test_other_types_go_through_torch() -> None:
    out, x = torch.ones(9, dtype=torch.float64), torch.arange(9.0)
    assert torch.equal(add_scaled_(out, x, 0.1), 1 + torch.arange(9.0).double() * 0.1)
    columns = torch.zeros(4, 6).mT
    assert torch.equal(add_scaled_(columns, torch.ones(6, 4).half(), 0.5), torch.full((6, 4), 0.5))
