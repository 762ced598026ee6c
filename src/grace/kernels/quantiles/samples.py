"""Quantile buckets: what sketch and sketchml share."""

from __future__ import annotations

import math

from torch import Tensor

from grace.errors import PayloadError
from grace.flags.refusals import refuse_unless
from grace.kernels.quantiles import BAD_MEAN
from grace.random import Stream

SMALL = 1 << 20  # up to here quantiles are exact


def count_seen(n: int, share: float) -> int:
    """Count of the numbers, of n, that quantiles are taken from: all, or a share of more than SMALL."""
    return n if n <= SMALL else math.ceil(share * n)


def sample_columns(rows: Tensor, share: float, rng: Stream) -> Tensor:
    """``rows [b, n]`` themselves; where n > SMALL a share of their columns, drawn at random."""
    n = rows.shape[1]
    seen = count_seen(n, share)
    return rows if seen == n else rows[:, rng.subset(n, seen, rows.device)]


def check_means(means: Tensor) -> Tensor:
    """``means``, of any shape, themselves, which have to be finite."""
    refuse_unless(means.isfinite().all(), lambda: PayloadError(BAD_MEAN))
    return means
