"""The largest positive and the largest negative numbers: what AdaQ selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace.compute.host import host_int64
from grace.kernels.selection import select_topk

if TYPE_CHECKING:
    from grace.random import Stream


@dataclass(frozen=True)
class SideSelection:
    """Selection by sign from each of several tensors: of m positive numbers the largest, and of the negative ones likewise.

    kept: how many of m, int64 of any shape; none of none; hashable. joint: of all that are not 0 the largest magnitudes
        instead. sample: of more than so many numbers those are selected that reach the least of the ``kept`` largest of so
        many, drawn at random; 0: exactly the largest.
    """

    kept: Callable[[Tensor], Tensor]
    joint: bool
    sample: int = 0

    @property
    def searches(self) -> int:
        """Number of sides that are searched."""
        return 1 if self.joint else 2

    @property
    def sought(self) -> int:
        """A threshold is the so many-th largest magnitude of those that are drawn."""
        return int(self.kept(host_int64(self.sample)))

    def select(self, row: Tensor, streams: Sequence[Stream]) -> Tensor:
        """Places ``[k]`` of a finite row ``[n]``, ascending. What is drawn of each side is, with its stream."""
        if self.joint:
            return self._largest(row, streams[0])
        upper, lower = streams
        chosen = [self._largest(row.clamp(min=0), upper), self._largest(row.clamp(max=0), lower)]
        return torch.cat(chosen).sort().values

    def room(self, n: int) -> int:
        """For more places than n numbers ever have: what is kept of each side is rounded."""
        return n if self.sample else min(n, int(self.kept(host_int64(n))) + 4)

    def _largest(self, part: Tensor, rng: Stream) -> Tensor:
        """The places ``[k]`` of the largest magnitudes of ``part [n]``, none of which is 0, ascending."""
        m = part.count_nonzero()
        if self.sample and m > self.sample:
            at = part.nonzero()[:, 0]  # [m]
            size = part[at].abs()
            seen = size[rng.subset(len(at), self.sample, part.device)]
            return at[size >= seen.topk(self.sought, sorted=False).values.amin()]
        k = int(self.kept(m))
        return select_topk(part[None], k)[0] if k else torch.empty(0, dtype=torch.int64, device=part.device)
