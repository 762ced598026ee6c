"""The specification of the hashes, in plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from grace.kernels.count_sketches import PRIME, sketch_unit
from grace.kernels.sums import add_scaled_
from grace.kernels.tensor_list import TensorList

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
        keys = torch.arange(piece.start, piece.stop, device=words.device, dtype=torch.int64)
        yield piece, polynomial_hash(cell, keys) % cols, 1 - 2 * (polynomial_hash(sign, keys) & 1)


def sketch_add_(sketch: Tensor, numbers: Tensor, cells: Tensor, signs: Tensor) -> None:
    signed = numbers[:, None, :].to(sketch.dtype) * signs  # [b, R, m]
    # Keys share cells: on CUDA they are added in any order, and subnormal numbers are zeros.
    sketch.scatter_add_(2, cells.expand_as(signed), signed)


def sketch_query(sketch: Tensor, cells: Tensor, signs: Tensor) -> Tensor:
    b, (rows, m) = sketch.shape[0], cells.shape
    return (sketch.gather(2, cells.expand(b, rows, m)) * signs).median(dim=1).values


def count_sketch(numbers: Tensor, words: Tensor, rows: int, cols: int) -> Tensor:
    b, n = numbers.shape
    sketch = torch.zeros(b, rows, cols, dtype=torch.float64, device=numbers.device)
    for piece, cells, signs in sketch_hashes(words, rows, n, cols):
        sketch_add_(sketch, numbers[:, piece], cells, signs)
    return sketch.mul_(sketch_unit(n)).float().view(b, -1)


def add_sketch_(out: Tensor, sketch: Tensor, words: Tensor, rows: int, scale: float) -> None:
    (b, n), largest = out.shape, torch.finfo(torch.float32).max
    cells_of = sketch.view(b, rows, -1)
    for piece, cells, signs in sketch_hashes(words, rows, n, cells_of.shape[2]):
        estimate = sketch_query(cells_of, cells, signs).double().mul_(1 / sketch_unit(n)).clamp_(-largest, largest)
        add_scaled_(out[:, piece], estimate.float(), scale)


def count_sketches_many(message: Tensor, many: TensorList, rows: int, cols: tuple[int, ...], step: int) -> None:
    for t, numbers in enumerate(many.xs if many.rests is None else many.rests):
        words = replace(many.streams[t], step=step).words(3 * rows, many.device)
        _place(message, many, t, rows * cols[t]).copy_(count_sketch(numbers, words, rows, cols[t])[0])


def read_sketches_many(message: Tensor, many: TensorList, rows: int, cols: tuple[int, ...], step: int) -> Tensor:
    flags = []
    for t, x in enumerate(many.xs):
        words = replace(many.streams[t], step=step).words(3 * rows, many.device)
        sketch = _place(message, many, t, rows * cols[t])
        flags.append(sketch.isfinite().all())
        add_sketch_(x.zero_(), sketch[None], words, rows, 1.0)
    return torch.stack(flags)


def _place(message: Tensor, many: TensorList, t: int, size: int) -> Tensor:
    begin = many.places[t] // 4
    return message[begin : begin + size]
