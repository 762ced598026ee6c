"""Where codes of gaps end, which other fields of a wire follow: known once they have been read."""

from __future__ import annotations

import torch
from torch import Tensor


def note_ends(ends: Tensor, flat: Tensor, lines: Tensor, delta: bool, total: Tensor, index: Tensor) -> None:
    """Sets ``ends [rows]`` int64 to how many bytes codes in ``flat [s]`` uint8 take, where ``lines [rows, 8]`` say they are,
    and ``total [1, rows]`` and ``index [1, K]`` as :func:`grace.kernels.gap_lists.triton.read_lists` shows them; of an
    illegal one it may be anything.
    """
    k, first = lines[:, 0], lines[:, 1]
    if delta:
        ends.copy_((5 * ((k + 127) // 128) + 7) // 8 + total[0])
    elif index.shape[1]:
        low = flat.index_select(0, (lines[:, 6] + lines[:, 7]).clamp_(max=len(flat) - 1)).long().clamp_(max=31)
        upper = index[0].index_select(0, (first + k - 1).clamp_(0, index.shape[1] - 1))
        ends.copy_(torch.where(k > 0, 1 + (k * low + 7) // 8 + (upper + k + 7) // 8, 0))
