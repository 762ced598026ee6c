"""Quantile buckets: what sketch and sketchml share."""

from __future__ import annotations

import math

from torch import Tensor

from grace.errors import PayloadError
from grace.flags.refusals import refuse_unless
from grace.random import Stream

SMALL = 1 << 20  # up to here quantiles are exact


def sample_columns(rows: Tensor, share: float, rng: Stream) -> Tensor:
    """``rows [b, n]`` themselves; where n > SMALL a share of their columns, drawn at random."""
    n = rows.shape[1]
    return rows if n <= SMALL or share == 1 else rows[:, rng.subset(n, math.ceil(share * n), rows.device)]


def check_means(means: Tensor) -> Tensor:
    """``means``, of any shape, themselves, which have to be finite."""
    refuse_unless(means.isfinite().all(), lambda: PayloadError("field 'means' must be finite"))
    return means
