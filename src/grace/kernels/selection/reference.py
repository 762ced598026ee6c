"""The specification of selecting, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import grace.kernels.selection as family
from grace.flags.finite import Flag, on_host
from grace.kernels.finite import all_finite
from grace.kernels.places import find_set
from grace.kernels.selection import round_to_bfloat16
from grace.kernels.spans import CHUNK, split_spans
from grace.kernels.tensor_list import TensorList

_LARGEST = torch.finfo(torch.float32).max


def select_topk(rows: Tensor, k: int) -> Tensor:
    b, n = rows.shape
    if k == n or b == 0:
        return torch.arange(n, device=rows.device, dtype=torch.int64).expand(b, n)[:, :k]
    return torch.stack([_select_row(row, k) for row in rows])


def select_at_least(row: Tensor, bound: float, *, strict: bool = False) -> Tensor:
    parts = []
    for span in split_spans(1, row.numel()):
        size = row[span.columns].abs()
        below = size <= bound if strict else size < bound
        parts.append(below.logical_not_().nonzero().view(-1) + span.start)
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=row.device)


def take_topk(
    rows: Tensor, k: int, memory: Tensor | None = None, rest: Tensor | None = None, *, narrow: bool = False
) -> tuple[Tensor, Tensor, Flag]:
    p = _add_memory(rows, memory, rest)
    finite = all_finite(p)
    index = torch.stack([_select_row(row, k) for row in p])
    return index, _take(p, index, rest is not None, narrow), finite


def take_topk_many(
    index: Tensor, sent: Tensor, many: TensorList, kept: tuple[int, ...], *, narrow: bool = False
) -> Tensor:
    flags, counts = [], kept[:: many.rows]
    parts = [many.rows * k for k in counts]
    for t, (places, values) in enumerate(zip(index.split_with_sizes(parts), sent.split_with_sizes(parts), strict=True)):
        memory = None if many.memories is None else many.memories[t]
        rest = None if many.rests is None else many.rests[t]
        where, taken, finite = family.take_topk(many.xs[t].float(), counts[t], memory, rest, narrow=narrow)
        places.copy_(where.reshape(-1))
        values.copy_(taken.reshape(-1))
        flags.append(torch.as_tensor(finite, device=index.device, dtype=torch.bool))
    return torch.stack(flags)


def add_memories_many(storage: Tensor, many: TensorList) -> Tensor:
    flags = []
    for t, x in enumerate(many.xs):
        memory = None if many.memories is None else many.memories[t]
        p = _add_memory(x.float(), memory, None if many.rests is None else many.rests[t])
        flags.append(torch.as_tensor(all_finite(p), device=x.device, dtype=torch.bool))
    return torch.stack(flags)


def take_at_least(
    row: Tensor,
    bound: float,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
    *,
    strict: bool = False,
    narrow: bool = False,
) -> tuple[Tensor, Tensor, Flag]:
    p = _add_memory(row, memory, rest)
    finite = all_finite(p)
    index = select_at_least(p, min(bound, _LARGEST) if strict else bound, strict=strict)
    return index, _take(p[None], index[None], rest is not None, narrow)[0], finite


def _add_memory(rows: Tensor, memory: Tensor | None, rest: Tensor | None) -> Tensor:
    """``rows + memory`` in ``rest``'s storage, where there is one."""
    if memory is not None:
        return torch.add(rows, memory, out=rest) if rest is not None else rows + memory
    return rows if rest is None or rest.data_ptr() == rows.data_ptr() else rest.copy_(rows)


def _take(p: Tensor, index: Tensor, keep_rest: bool, narrow: bool) -> Tensor:
    """The numbers of ``p [b, n]`` at ``index [b, k]``; with ``keep_rest`` p keeps what they do not say."""
    kept = p.gather(1, index)
    sent = round_to_bfloat16(kept).float() if narrow else kept
    if keep_rest:
        p.scatter_(1, index, kept - sent if narrow else torch.zeros_like(kept))
    return sent


def _select_row(row: Tensor, k: int) -> Tensor:
    """``[n]`` -> ``[k]``. For a large row a sample gives a lower bound of the k-th largest; what reaches it is compacted, and
    the selection is made among that. It is exact, whatever the sample.
    """
    n = row.numel()
    bound = _estimate_bound(row, k) if n > CHUNK and k < n and on_host(row.device) else 0.0
    if bound > 0:
        candidates = select_at_least(row, bound)
        if candidates.numel() >= k:
            return candidates[_k_largest(row[candidates], k)]
    return _k_largest(row, k)


def _estimate_bound(row: Tensor, k: int) -> float:
    """A magnitude that at least k numbers of the row very probably reach, and few more; 0 if a sample cannot tell."""
    n = row.numel()
    size = min(max(n // 256, 4096), 65536)
    sample = row[torch.arange(size, device=row.device, dtype=torch.int64) * n // size].abs()
    expected = k * size / n
    rank = int(expected + 5 * math.sqrt(expected) + 4)
    return float(sample.nan_to_num_(nan=math.inf).topk(rank, sorted=False).values.min()) if rank < size else 0.0


def _k_largest(values: Tensor, k: int) -> Tensor:
    """``[n]`` -> ``[k]`` ascending places of the k largest magnitudes; the first of equal ones."""
    size = values.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
    kth = size.topk(k, sorted=False).values.min()
    keep, ties = size > kth, size == kth
    keep |= ties & (ties.cumsum(0) <= k - keep.sum())
    return find_set(keep[None], k)[0]
