"""The wires of samples: keep each number with its own probability, and make up for the others.

Letters: a = |x|; ``p = min(a / unit, 1)`` is the probability that a number is kept; k1 numbers have p = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.kernels.index_codes import codes as index_codes
from grace.kernels.index_codes.codes import decode, encode, take
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.places import add_at_
from grace.kernels.sampling.parts import DENSE_COUNT
from grace.kernels.sampling.units import sum_unless
from grace.kernels.sums import add_scaled_

if TYPE_CHECKING:
    from grace.random import Stream

_COUNTS = ("counts", torch.int32, 2)
_FLOAT = torch.finfo(torch.float32)


def sample_(rows: Tensor, unit_of: Callable[[Tensor], float], rng: Stream, factor: float, code: str) -> Tensor:
    """Rows ``[b, n]`` -> wire ``[b, w]`` of factor times an unbiased sample; 1/lambda is ``unit_of(magnitudes)``.

    A row is: k1 and k2 (int32); k1 values of which p = 1; the unit, if k2 > 0; the signs of k2 others; both lists of
    indices. Or -1, 0 and all values, where the former is expected to be larger. The choice does not depend on what is
    drawn: that would be a bias.
    """
    chance = uniform32(rng, rows.numel(), rows.device).view(rows.shape)
    return index_codes.pad([_sample(row, unit_of, u, factor, code) for row, u in zip(rows, chance, strict=True)])


def _sample(row: Tensor, unit_of: Callable[[Tensor], float], u: Tensor, factor: float, code: str) -> Tensor:
    n = row.numel()
    a = row.abs()
    unit = a.new_tensor(min(max(unit_of(a), _FLOAT.tiny), _FLOAT.max)) if bool(a.any()) else a.new_tensor(_FLOAT.max)
    p = a / unit
    sure = a >= unit
    group1 = sure.nonzero()[:, 0]
    group2 = ((u < p) & ~sure).nonzero()[:, 0]
    k1 = group1.numel()
    expected = min(n - k1, math.ceil(sum_unless(p, sure)))
    size = 4 * k1 + 4 + packed_bytes(expected, 1) + index_codes.most(n, k1, code) + index_codes.most(n, expected, code)
    if size >= 4 * n:
        return wires.join(_counts(row, DENSE_COUNT, 0), row[None] * factor)[0]
    fields = [_counts(row, k1, group2.numel()), row[None, group1] * factor]
    if group2.numel():
        fields += [(unit * factor).view(1, 1), pack(row[None, group2] > 0, 1)]
    return wires.join(*fields, encode(group1[None], n, code), encode(group2[None], n, code))[0]


def add_sampled_(wire: Tensor, out: Tensor, scale: float, code: str) -> None:
    """``out [b, n]`` += scale times what wires of :func:`sample_` decode to.

    Raises:
        PayloadError: as :meth:`grace.Compressor.decompress_add_`.
    """
    n = out.shape[1]
    for part, row in zip(wire[:, None], out[:, None], strict=True):  # [1, w], [1, n]
        k1, k2 = wires.split(part, [_COUNTS], slack=True)[0][0].tolist()
        if (k1, k2) == (DENSE_COUNT, 0):
            k1 = n
        elif not (k1 >= 0 and k2 >= 0 and k1 + k2 <= n):
            raise PayloadError(f"field 'counts' must be of at most {n} numbers, got {k1} and {k2}")
        dense = k1 == n and k2 == 0
        fields = [_COUNTS, ("values", torch.float32, k1)]
        if k2:
            fields += [("unit", torch.float32, 1), ("signs", torch.uint8, packed_bytes(k2, 1))]
        _, values, *others = wires.split(part, fields, slack=True)
        if not bool(values.isfinite().all()):
            raise PayloadError("field 'values' must be finite")
        if dense:
            add_scaled_(row, values, scale)
            continue
        at = sum(count * dtype.itemsize for _, dtype, count in fields)
        index, used = take(part[:, at:], n, k1, code)
        add_at_(row, 1, index, values * scale)
        if k2:
            unit, signs = others
            index = decode(part[:, at + used :], n, k2, code, slack=True)
            sign = unpack(signs, 1, k2).to(torch.float32).mul_(2).sub_(1)
            add_at_(row, 1, index, sign * (wires.check_scale("unit", unit) * scale))


def _counts(row: Tensor, k1: int, k2: int) -> Tensor:
    return torch.tensor([[k1, k2]], dtype=torch.int32, device=row.device)


def uniform32(rng: Stream, n: int, device: torch.device) -> Tensor:
    """``[n]`` float32 in (0, 1], 32 bits each, exact near 0: 16 bits would be a bias for probabilities of 0.001."""
    words = rng.words((n + 1) // 2, device).view(-1)[:n]
    return words.to(torch.float32).add_(0.5).mul_(2.0**-32).add_((words < 0).to(torch.float32))
