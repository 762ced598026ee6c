"""The specification of the hashes, in plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from grace.kernels.hashing import PRIME

_CHUNK = 1 << 18  # keys at a time: each takes R int64 numbers of memory


def hash_coefficients(words: Tensor, degree: int) -> Tensor:
    out = (words.reshape(-1).long() & 0xFFFFFFFF) % PRIME
    out = out[: out.numel() // (degree + 1) * (degree + 1)].view(-1, degree + 1)
    out[:, 0].clamp_(min=1)
    return out


def polynomial_hash(coefficients: Tensor, keys: Tensor) -> Tensor:
    out = coefficients[:, :1].expand(-1, keys.numel())
    for power in range(1, coefficients.shape[1]):  # no product reaches 2**62, so int64 holds it
        out = (out * keys + coefficients[:, power, None]) % PRIME
    return out


def sketch_hashes(words: Tensor, rows: int, n: int, cols: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    flat = words.reshape(-1)
    cell = hash_coefficients(flat[: 2 * rows], 1)
    sign = hash_coefficients(flat[2 * rows : 6 * rows], 3)
    for start in range(0, n, _CHUNK):
        piece = slice(start, min(n, start + _CHUNK))
        keys = torch.arange(piece.start, piece.stop, device=words.device)
        yield piece, polynomial_hash(cell, keys) % cols, 1 - 2 * (polynomial_hash(sign, keys) & 1)


def sketch_add_(sketch: Tensor, numbers: Tensor, cells: Tensor, signs: Tensor) -> None:
    signed = numbers[:, None, :].to(sketch.dtype) * signs  # [b, R, m]
    # Keys share cells: on CUDA they are added in any order, and subnormal numbers are zeros.
    sketch.scatter_add_(2, cells.expand_as(signed), signed)


def sketch_query(sketch: Tensor, cells: Tensor, signs: Tensor) -> Tensor:
    b, (rows, m) = sketch.shape[0], cells.shape
    return (sketch.gather(2, cells.expand(b, rows, m)) * signs).median(dim=1).values
