"""Elementary operations with the same bits on every processor, where torch's own differ.

Torch's sums, differences, products and quotients of two numbers are rounded as IEEE 754 says, on every machine. These are
not: ``add`` with ``alpha``, ``addcmul`` and ``lerp``, which fuse a product and a sum where the processor can; square roots,
logarithms, sines and powers, which come from one of several libraries; sums of many numbers, whose order depends on
vectors and threads; and division by a Python number, which CUDA does as multiplication by its reciprocal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["add_product", "cosine_and_sine", "hypotenuse", "natural_log", "square_root", "sum_by_halves"]

LOG_2, ROOT_HALF = 0.6931471805599453, 0.7071067811865476
LOG_TERMS = 12  # of 2 (s + s^3/3 + s^5/5 + ...) for |s| <= 0.172: the next one is below 2**-64
_PIECE = 1 << 14  # numbers that are in float64 at once
ANGLE_TERMS = 10  # of the series of sine and cosine for angles up to pi/4: the next one is below 2**-64


def sum_by_halves(values: Tensor) -> Tensor:
    """``[..., n]`` -> ``[...]``: zeros are appended up to a power of two; then the upper half is added to the lower, until one
    number is left.
    """
    n, half = values.shape[-1], 1
    while 2 * half < n:
        half *= 2
    values = torch.nn.functional.pad(values, (0, 2 * half - n))
    while half:
        values = values[..., :half] + values[..., half : 2 * half]
        half //= 2
    return values[..., 0]


def add_product(x: Tensor, factor: Tensor, y: Tensor) -> Tensor:
    """``x + factor y``, float32 of any shapes that fit, rounded once: what ``add`` with ``alpha`` is where the processor fuses
    product and sum.

    A product of two float32 is exact in float64. The sum is rounded there to the odd one of the two nearest numbers, if it is
    not exact, and then to float32; see Boldo and Melquiond, IEEE Transactions on Computers 2008.
    """
    product, x = factor.double() * y.double(), x.double()
    total = product + x
    back = total - product
    lost = (product - (total - back)) + (x - back)
    word = total.view(torch.int64)
    even = ((lost > 0) | (lost < 0)) & (word & 1 == 0)
    word = torch.where(even, torch.where((lost > 0) == (total > 0), word + 1, word - 1), word)
    return word.view(torch.float64).float()


def square_root(x: Tensor) -> Tensor:
    """The square root of float64 numbers of any shape, rounded to nearest: torch's own, which may be the one beside it, and a
    look at its square. Exact from 1e-280 on, and for 0. CUDA rounds to nearest.
    """
    root = x.sqrt()
    if not x.is_cpu:
        return root
    high = root * (2.0**27 + 1)
    high = high - (high - root)  # half of its bits
    low, square = root - high, root * root
    lost = ((high * high - square) + 2 * high * low) + low * low
    left = x - square - lost  # exact: Dekker, Numerische Mathematik 1971
    above, below = (root.nextafter(torch.full_like(root, end)) for end in (math.inf, 0.0))
    root = torch.where(left > root * (above - root), above, root)  # Tuckerman's test
    return torch.where(left <= root * (below - root), below, root)


def hypotenuse(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """``sqrt(a^2 + b^2)`` of float32 numbers, in ``out``, which is contiguous and may be ``a``, or in a new tensor, all of one
    shape: squared, added and rooted in float64, where nothing overflows or vanishes. float64 numbers get torch's own.
    """
    if a.dtype == torch.float64:
        return torch.hypot(a, b, out=out)
    out = torch.empty(a.shape, dtype=a.dtype, device=a.device) if out is None else out
    size = _PIECE if a.is_cpu else max(1, a.numel())
    for x, y, to in zip(*(torch.split(z.reshape(-1), size) for z in (a, b, out)), strict=True):
        to.copy_(square_root(x.double().square_().add_(y.double().square_())))
    return out


def natural_log(x: Tensor) -> Tensor:
    """The natural logarithm of positive, normal float64 numbers, in any shape; the error is below 4e-16 of 1 or of the
    logarithm.
    """
    mantissa, exponent = x.frexp()  # in [1/2, 1)
    low = mantissa < ROOT_HALF
    mantissa = torch.where(low, mantissa * 2, mantissa)  # in [0.707, 1.414)
    power = exponent.to(x.dtype) - low.to(x.dtype)
    s = (mantissa - 1) / (mantissa + 1)
    square, series = s * s, torch.full_like(s, 1 / (2 * LOG_TERMS - 1))
    for term in range(LOG_TERMS - 2, -1, -1):
        series = series * square + 1 / (2 * term + 1)
    return series * s * 2 + power * LOG_2


def cosine_and_sine(turns: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of ``2 pi turns``, float64 in [0, 1] and of any shape; the error is below 4e-16."""
    quarter = (turns * 4).round()
    angle = (turns - quarter * 0.25) * (2 * math.pi)  # in [-pi/4, pi/4]
    square = angle * angle
    cosine, sine = torch.ones_like(square), torch.ones_like(square)
    for term in range(ANGLE_TERMS - 1, 0, -1):
        cosine = 1 - square * cosine * (1 / ((2 * term - 1) * (2 * term)))
        sine = 1 - square * sine * (1 / ((2 * term) * (2 * term + 1)))
    sine = angle * sine
    swapped = quarter.remainder(2) == 1
    cosine, sine = torch.where(swapped, sine, cosine), torch.where(swapped, cosine, sine)
    turned = quarter.remainder(4)
    return torch.where((turned == 1) | (turned == 2), -cosine, cosine), torch.where(turned >= 2, -sine, sine)
