"""Thresholds of both sides of several tensors that samples give, and how many numbers reach them: what is selected is then a
top-k, whose k the device knows.

How many numbers a side has, the host is told: a subset of so many is drawn from it. Places on a side become places of a tensor
by running counts of all numbers side by side, a fixed number of torch operations.

Letters: T tensors, N numbers of all; S sides; D sides that have more numbers than are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace.compute.host import host_int64
from grace.kernels.random_masks import Drawing
from grace.kernels.random_masks.triton import Subsets
from grace.kernels.tensor_list import TensorList, carry_together
from grace.kernels.variable_sparse.sides import SideSelection

if TYPE_CHECKING:
    from grace.random import Stream


def count_sampled(
    kept: Tensor, counts: Tensor, many: TensorList, streams: Sequence[Stream], sides: SideSelection, step: int
) -> Tensor:
    """int64 ``[T, S]``: how many numbers of each side are selected, of ``counts [T, S]``; ``kept [T, S]`` where there are no
    more than are drawn. There are no memories to add.
    """
    told: list[int] = counts.view(-1).tolist()  # the question
    drawn = [side for side, m in enumerate(told) if m > sides.sample]
    if not drawn:
        return kept
    S, N, D = sides.searches, sum(many.sizes), len(drawn)
    sizes = host_int64(many.sizes)
    searches = torch.arange(S, dtype=torch.int64, device="cpu")
    ends = (sizes.cumsum(0)[:, None] + N * searches).view(-1)  # [T S], among the running counts
    each, begins, ends, which = carry_together(
        (sizes, ends - sizes.repeat_interleave(S), ends, host_int64(drawn)), many.device
    )
    subsets = Subsets(
        TensorList([told[side] for side in drawn], [4 * sides.sample * d for d in range(D)],
             [streams[side // S].fork(side % S) for side in drawn], many.device),
        Drawing((sides.sample,) * D, None),
    )  # fmt: skip
    numbers = torch.cat([x.view(-1) for x in many.xs]).float()
    there = (numbers != 0)[None] if sides.joint else torch.stack((numbers > 0, numbers < 0))  # [S, N]
    before, size = _running(there), numbers.abs_()
    places = before[begins[which], None] + subsets.places(numbers, step).view(D, -1)
    seen = size[torch.searchsorted(before[1:], places + 1) % N]  # [D, sample]
    sought = many.once((count_sampled, sides), lambda: sides.sought)
    limits = torch.full_like(kept, torch.inf, dtype=torch.float32)
    limits.view(-1)[which] = seen.topk(sought, dim=1, sorted=False).values.amin(dim=1)
    up_to = _running(there & (size >= limits.t().repeat_interleave(each, dim=1, output_size=N)))
    return torch.where(limits < torch.inf, (up_to[ends] - up_to[begins]).view_as(kept), kept)


def _running(marks: Tensor) -> Tensor:
    """int64 ``[S N + 1]``: how many of ``marks [S, N]`` bool are set before each, one side behind the other."""
    counts = torch.zeros(marks.numel() + 1, dtype=torch.int64, device=marks.device)
    torch.cumsum(marks.view(-1), 0, out=counts[1:])
    return counts
