"""The largest positive and the largest negative numbers: what AdaQ selects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels.selection import select_topk


@dataclass(frozen=True)
class SideSelection:
    """What is selected from each of several tensors: of m positive numbers the largest, and of the negative ones likewise.

    kept: how many of m, int64 of any shape; none of none; hashable. joint: of all that are not 0 the largest magnitudes
        instead.
    """

    kept: Callable[[Tensor], Tensor]
    joint: bool

    def select(self, row: Tensor) -> Tensor:
        """Places ``[k]`` of a finite row ``[n]``, ascending."""
        if self.joint:
            return self._largest(row)
        chosen = [self._largest(row.clamp(min=0)), self._largest(row.clamp(max=0))]
        return torch.cat(chosen).sort().values

    def room(self, n: int) -> int:
        """For more places than n numbers ever have: what is kept of each side is rounded."""
        return min(n, int(self.kept(torch.tensor(n))) + 4)

    def _largest(self, part: Tensor) -> Tensor:
        """The places ``[k]`` of the largest magnitudes of ``part [n]``, none of which is 0, ascending."""
        k = int(self.kept(part.count_nonzero()))
        return select_topk(part[None], k)[0] if k else torch.empty(0, dtype=torch.int64, device=part.device)
