"""Operations that several quantizers share, in plain torch: the specification that faster versions must agree with.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.reference import spread

MOST = torch.finfo(torch.float32).max * (1 - 2.0**-20)  # rounded factors whose product should be this do not overflow
_TINY = torch.finfo(torch.float32).tiny


def block_divide(rows: Tensor, scale: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Rows ``[b, n]`` in units of their block's scale ``[b, nb]``, >= 0: (the scale, ``rows / scale``).

    A scale below 2**-126 becomes 0, and so do the numbers of its block.
    """
    scale = torch.where(scale < _TINY, 0.0, scale)
    wide = spread(scale, rows.shape[1], block)
    return scale, torch.where(wide > 0, rows / wide.clamp_min(_TINY), 0.0)


def nearest(values: Tensor, book: Tensor) -> Tensor:
    """``[b, n]`` -> ``[b, n]`` int64: the position of the nearest entry of the ascending ``book [m]``; of two that are
    equally near the first. The midpoints are rounded to float32.
    """
    middle = (book[1:].double() + book[:-1].double()).div_(2).float()
    return torch.bucketize(values, middle)
