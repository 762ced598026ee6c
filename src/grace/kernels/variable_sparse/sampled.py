"""The largest magnitudes, found by a threshold that a sample gives: what DGC selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from grace.kernels.random_masks import take_subset
from grace.kernels.selection import select_topk, take_at_least, take_topk

if TYPE_CHECKING:
    from grace.random import Stream


@dataclass(frozen=True)
class Sampling:
    """Selection by thresholds from a sample, for each of several tensors.

    seen: how many of its numbers are drawn. sought: the threshold is the so many-th largest magnitude among them. most: how
    many numbers are selected at most. lower, rounds: while fewer than ``lower`` times ``most`` reach the threshold it is
    multiplied by ``lower``, at most so often.
    """

    seen: Sequence[int]
    sought: Sequence[int]
    most: Sequence[int]
    lower: float
    rounds: int

    def select(self, t: int, row: Tensor, rng: Stream) -> tuple[Tensor, Tensor]:
        """At least one and at most ``most[t]`` places ``[k']`` of the row ``[n]``, ascending, and the numbers there."""
        k, seen = self.most[t], self.seen[t]
        if seen == row.numel():
            index, values, _ = take_topk(row[None], k)
            return index[0], values[0]
        sample = take_subset(row[None], seen, rng)[0].abs_()
        limit = float(sample.topk(self.sought[t], sorted=False).values.amin())
        index, values, _ = take_at_least(row, limit)
        for _ in range(self.rounds):
            if index.numel() >= self.lower * k:
                break
            limit *= self.lower
            index, values, _ = take_at_least(row, limit)
        if index.numel() > k:
            largest = select_topk(values[None], k)[0]
            index, values = index[largest], values[largest]
        return index, values
