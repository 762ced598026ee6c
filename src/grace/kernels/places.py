"""Places in rows: where bits are set, found without asking the host how many there are; and what is added at places."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.flags.finite import on_host

__all__ = ["add_at_", "find_set"]


def find_set(bits: Tensor, k: int) -> Tensor:
    """``[b, m]`` bools or 0 and 1 -> ``[b, k]`` int64, ascending: where the first k set ones of each row are; 0 for those that
    are missing. The host need not know how many there are.
    """
    if on_host(bits.device) and bits.shape[0] == 1:
        index = bits[0].nonzero().view(1, -1)[:, :k]
        return index if index.shape[1] == k else torch.nn.functional.pad(index, (0, k - index.shape[1]))
    order = bits.cumsum(dim=1)  # [b, m]: how many are set up to here
    slot = torch.where((bits != 0) & (order <= k), order - 1, k)
    out = slot.new_zeros(bits.shape[0], k + 1)
    places = torch.arange(bits.shape[1], device=bits.device, dtype=torch.int64).expand(bits.shape)
    return out.scatter_(1, slot, places)[:, :k]


def add_at_(out: Tensor, dim: int, places: Tensor, values: Tensor) -> Tensor:
    """``out[places] += values`` along ``dim``; ``places``: int64, of values' shape or ``[m]``, of which none occurs twice in a
    row. Without atomic operations: those of CUDA take subnormal numbers for zeros. Returns ``out``.
    """
    if places.dim() == values.dim():
        return out.scatter_(dim, places, out.gather(dim, places).add_(values))
    return out.index_copy_(dim, places, out.index_select(dim, places).add_(values))
