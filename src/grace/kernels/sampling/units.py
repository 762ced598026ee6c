"""The unit 1/lambda: numbers of magnitude a are kept with the probability ``min(a / unit, 1)``.

Sums are formed in float64, in the order of :mod:`grace.kernels.statistics`; what does not count is 0 there. Magnitudes are
compared with the unit as float32, as torch compares them with a number. So the unit has the same bits on all machines and
devices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.blocks import runs_of_pieces
from grace.kernels.statistics import block_sum, square_sum

_PIECE = 4096  # of ordered sums


def unit_of_count(a: Tensor, count: float, rounds: int) -> float:
    """1/lambda such that ``sum min(lambda a, 1)``, for magnitudes ``a [n]``, comes near to count from below."""
    unit = sum_unless(a, None) / count
    for _ in range(rounds):
        above = a >= unit
        missing = count - a.numel() + (a.numel() - int(above.count_nonzero()))  # what p = 1 leaves of the count
        total = sum_unless(a, above)
        if missing <= 0 or total == 0 or total / missing >= unit:
            break
        unit = total / missing
    return unit


def unit_of_variance(a: Tensor, epsilon: float) -> float:
    """1/lambda such that a sample of magnitudes ``a [n]`` has variance ``epsilon sum a^2``, with the fewest numbers.

    The variance is ``sum of a (unit - a)`` of those below the unit: it grows with the unit, and its slope does. So Newton's
    method comes from above, and ends.
    """
    total, squares = sum_unless(a, None), square_sum(a)
    spread = epsilon * squares
    unit = (spread + squares) / total
    while True:
        above = a >= unit
        total, squares = sum_unless(a, above), square_sum(a.masked_fill(above, 0.0))
        if total == 0 or (spread + squares) / total >= unit:
            return unit
        unit = (spread + squares) / total


def unit_of_budget(a: Tensor, budget: float) -> Tensor:
    """1/lambda with ``sum min(lambda a, 1) = min(budget, non-zero numbers)``, for magnitudes ``a [n]``, not all zero:
    water-filling. float64 ``[1]``: nobody asks the host.
    """
    sizes = a.double().sort(descending=True).values  # [n], zeros behind the m others
    left = budget - torch.arange(sizes.numel(), dtype=torch.float64, device=a.device)  # of the budget, before the i-th
    tail = sizes.flip(0).cumsum(0).flip(0)  # the sum of the i-th and all smaller ones
    sure = (sizes * left >= tail).cumprod(0)  # certain to be kept, as are all before it
    some = (sizes > 0).sum(0, keepdim=True)  # [1]: m
    first = torch.minimum(sure.sum(0, keepdim=True), some)
    last = torch.minimum(first, some - 1).clamp_min(0)
    return torch.where(first < some, tail.gather(0, last) / left.gather(0, last), sizes.gather(0, last))


def sum_unless(values: Tensor, left_out: Tensor | None) -> float:
    """The sum of ``values [n]`` that are not ``left_out [n]``, which count as 0."""
    total, n = 0.0, values.numel()
    if n <= _PIECE:
        return float(block_sum((values if left_out is None else values.masked_fill(left_out, 0.0))[None], n))
    for run in runs_of_pieces(n, _PIECE):
        part = values[run] if left_out is None else values[run].masked_fill(left_out[run], 0.0)
        for piece in block_sum(part[None], _PIECE)[0].tolist():
            total += piece
    return total
