"""The specification of sums with a factor, in plain torch."""

from __future__ import annotations

from torch import Tensor

from grace.kernels.spans import CHUNK


def add_scaled_(out: Tensor, x: Tensor, scale: float) -> Tensor:
    if scale in (1.0, -1.0):
        return out.add_(x, alpha=scale)
    if not (out.is_contiguous() and x.is_contiguous()):
        return out.add_(x.to(out.dtype) * scale)
    flat, other = out.view(-1), x.view(-1)
    for start in range(0, flat.numel(), CHUNK):
        piece = slice(start, start + CHUNK)
        flat[piece].add_(other[piece].to(out.dtype) * scale)
    return out
