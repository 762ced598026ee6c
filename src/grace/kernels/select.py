"""Selecting the numbers of large magnitude: the k largest, or all from a bound on; alone, or with error feedback in one pass.

A NaN counts as infinite; of equal magnitudes the first win. The torch functions below specify what the native kernels do,
to the bit.

Letters: b rows of n <= 2**31 - 1 numbers, of which k are selected.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from grace import backends, native
from grace.kernels import check
from grace.kernels.finite import all_finite
from grace.kernels.reference import ordered_sum
from grace.kernels.spans import CHUNK, spans

_PIECE = 4096  # of an ordered sum
_MOST = (1 << 31) - 1
_LARGEST = torch.finfo(torch.float32).max
_TOPK = native.declare(
    "topk",
    *(native.P, native.P, native.P, native.N, native.N, native.N, native.I, native.P, native.P, native.I),
)
_ABOVE = native.declare(
    "above",
    *(native.P, native.P, native.P, native.N, native.I, native.I, native.N, native.P, native.P, native.P, native.I),
)
_SQUARES = native.declare("square_sum", native.P, native.P, native.N, native.P, native.I)


def select_topk(rows: Tensor, k: int) -> Tensor:
    """``[b, n]``, of any floating type -> ``[b, k]`` int64, ascending: the k largest magnitudes of each row, 1 <= k <= n."""
    b, n = rows.shape
    if k == n or b == 0:
        return torch.arange(n, device=rows.device).expand(b, n)[:, :k]
    if backends.function(_TOPK) is None or not _fits(rows):
        return torch.stack([_select_row(row, k) for row in rows])
    return take_topk(rows.contiguous(), k)[0].long()


def select_at_least(row: Tensor, bound: float, *, strict: bool = False) -> Tensor:
    """``[n]``, of any floating type -> int64, ascending: the places of all |x| >= bound (strict: > bound), and of all NaN."""
    if backends.function(_ABOVE) is None or not _fits(row):
        return _select_at_least(row, bound, strict)
    return _above(row.contiguous(), _key(bound, strict), False, None, None)[0].long()


def take_topk(
    rows: Tensor, k: int, memory: Tensor | None = None, rest: Tensor | None = None, *, narrow: bool = False
) -> tuple[Tensor, Tensor, bool]:
    """The k numbers of ``p = rows + memory`` of largest magnitude: (places ``[b, k]`` ascending, int32 or int64; what they
    say ``[b, k]``; whether p was finite). With ``narrow`` they say the nearest bfloat16.

    ``rest`` becomes p minus that; it must be there if ``memory`` is, and may be ``rows`` if it is not. All are float32
    ``[b, n]``, contiguous. If p is not finite, what is said and the rest mean nothing. 1 <= k <= n.
    """
    b, n = rows.shape
    fast = backends.function(_TOPK) if _fits(rows) else None
    if fast is None:
        p = summed(rows, memory, rest)
        finite = all_finite(p)
        index = torch.stack([_select_row(row, k) for row in p])
        return index, _taken(p, index, rest is not None, narrow), finite
    sent = torch.empty(b, k)
    index = torch.empty(b, k, dtype=torch.int32)
    done = fast(*addresses(rows, memory, rest), b, n, k, narrow, index.data_ptr(), sent.data_ptr(), native.threads())
    if done < 0:
        raise MemoryError(f"kernels: no memory to select {k} numbers of {n}")
    return index, sent, bool(done)


def take_at_least(
    row: Tensor,
    bound: float,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
    *,
    strict: bool = False,
    narrow: bool = False,
) -> tuple[Tensor, Tensor, bool]:
    """As :func:`take_topk`, for one row ``[n]``: all |p| >= bound (strict: > bound), 0 <= bound. Returns ``[k]``, ``[k]``.

    Infinite numbers and NaN are always among them.
    """
    bound = min(bound, _LARGEST) if strict else bound
    if backends.function(_ABOVE) is None or not _fits(row):
        p = summed(row, memory, rest)
        finite = all_finite(p)
        index = _select_at_least(p, bound, strict)
        return index, _taken(p[None], index[None], rest is not None, narrow)[0], finite
    return _above(row, _key(bound, strict), narrow, memory, rest)


def root_mean_square(row: Tensor, memory: Tensor | None = None) -> float:
    """Of ``row [n] + memory``, n >= 1, float32, contiguous: summed in float64, in the order of :func:`ordered_sum`."""
    n = row.numel()
    fast = backends.function(_SQUARES) if row.device.type == "cpu" else None
    if fast is None:
        total = 0.0
        for start in range(0, n, 32 * _PIECE):
            part = row[start : start + 32 * _PIECE]
            if memory is not None:
                part = part + memory[start : start + 32 * _PIECE]
            for piece in ordered_sum(part.double().square_()[None], _PIECE)[0].tolist():
                total += piece
        return math.sqrt(total / n)
    out = ctypes.c_double()
    x, e, _ = addresses(row, memory, None)
    if fast(x, e, n, ctypes.byref(out), native.threads()):
        raise MemoryError(f"kernels: no memory to sum {n} numbers")
    return math.sqrt(out.value / n)


def summed(rows: Tensor, memory: Tensor | None, rest: Tensor | None) -> Tensor:
    """``rows + memory`` in ``rest``'s storage, where there is one."""
    if memory is not None:
        return torch.add(rows, memory, out=rest) if rest is not None else rows + memory
    return rows if rest is None or rest.data_ptr() == rows.data_ptr() else rest.copy_(rows)


def narrowed(values: Tensor) -> Tensor:
    """The nearest bfloat16, which is finite where the number is."""
    largest = torch.finfo(torch.bfloat16).max
    return values.clamp(-largest, largest).to(torch.bfloat16)


def addresses(rows: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[int, int | None, int | None]:
    """Of tensors of one shape, checked.

    Raises:
        InputError: another type or shape, or not contiguous.
    """
    shape = rows.shape
    return (
        check.numbers("rows", rows),
        None if memory is None else check.numbers("memory", memory, shape),
        None if rest is None else check.numbers("rest", rest, shape),
    )


def _fits(x: Tensor) -> bool:
    """Whether native code takes it."""
    return x.dtype is torch.float32 and x.device.type == "cpu" and x.shape[-1] <= _MOST


def _key(bound: float, strict: bool) -> int:
    """The least bits of a magnitude that is selected."""
    if not bound >= 0:
        return 0
    bits = ctypes.c_int32.from_buffer(ctypes.c_float(bound)).value
    return bits + strict


def _above(
    row: Tensor, key: int, narrow: bool, memory: Tensor | None, rest: Tensor | None
) -> tuple[Tensor, Tensor, bool]:
    fast = backends.function(_ABOVE)
    assert fast is not None
    n, where, finite = row.numel(), addresses(row, memory, rest), ctypes.c_int32()
    room = min(n, max(4096, n // 16))
    while True:
        index, sent = torch.empty(room, dtype=torch.int32), torch.empty(room)
        k = fast(
            *(*where, n, key, narrow, room, index.data_ptr(), sent.data_ptr()), ctypes.byref(finite), native.threads()
        )
        if k < 0:
            raise MemoryError(f"kernels: no memory to select from {n} numbers")
        if k <= room:
            return index[:k], sent[:k], bool(finite.value)
        room = k


# ---- the specification ----------------------------------------------------------------------------------------------
def _taken(p: Tensor, index: Tensor, keep_rest: bool, narrow: bool) -> Tensor:
    """The numbers of ``p [b, n]`` at ``index [b, k]``; with ``keep_rest`` p keeps what they do not say."""
    kept = p.gather(1, index)
    sent = narrowed(kept).float() if narrow else kept
    if keep_rest:
        p.scatter_(1, index, kept - sent if narrow else torch.zeros_like(kept))
    return sent


def _select_row(row: Tensor, k: int) -> Tensor:
    """``[n]`` -> ``[k]``. Of a large row a sample gives a lower bound of the k-th largest; what reaches it is compacted, and
    the selection is made among that: exact, whatever the sample says.
    """
    n = row.numel()
    bound = _sampled_bound(row, k) if n > CHUNK and k < n else 0.0
    if bound > 0:
        candidates = _select_at_least(row, bound, False)
        if candidates.numel() >= k:
            return candidates[_k_largest(row[candidates], k)]
    return _k_largest(row, k)


def _sampled_bound(row: Tensor, k: int) -> float:
    """A magnitude that very probably at least k numbers of the row reach, and few more; 0 if a sample cannot tell."""
    n = row.numel()
    size = min(max(n // 256, 4096), 65536)
    sample = row[torch.arange(size, device=row.device) * n // size].abs()
    expected = k * size / n
    rank = int(expected + 5 * math.sqrt(expected) + 4)
    return float(sample.nan_to_num_(nan=math.inf).topk(rank, sorted=False).values.min()) if rank < size else 0.0


def _k_largest(values: Tensor, k: int) -> Tensor:
    """``[n]`` -> ``[k]`` ascending places of the k largest magnitudes, of equal ones the first."""
    size = values.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
    kth = size.topk(k, sorted=False).values.min()
    keep = size > kth
    ties = (size == kth).nonzero().view(-1)
    keep[ties[: k - int(keep.count_nonzero())]] = True
    return keep.nonzero().view(-1)


def _select_at_least(row: Tensor, bound: float, strict: bool) -> Tensor:
    parts = []
    for span in spans(1, row.numel()):
        size = row[span.columns].abs()
        below = size <= bound if strict else size < bound
        parts.append(below.logical_not_().nonzero().view(-1) + span.start)
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=row.device)
