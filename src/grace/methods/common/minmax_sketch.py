"""MinMaxSketch of SketchML: a small number for each key, stored in fewer cells than keys, that is never read too large.

A group of s keys has R rows of ``ceil(share s)`` cells. Each key is hashed to one cell of each row, which keeps the
least number that falls into it; the largest of a key's R cells is what is read. Letters: k keys in all; G groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from grace.errors import PayloadError
from grace.kernels import hash_coefficients, pack, packed_bytes, polynomial_hash, unpack


def encode(
    numbers: Tensor, group: Tensor, keys: Tensor, widths: Sequence[int], rows: int, share: float, words: Tensor
) -> Tensor:
    """Numbers ``[k]``, below the width of their group ``[k]``; keys ``[k]`` below 2**31 - 1; 2 R random words.

    Returns uint8 ``[w]``: group by group, the cells in as few bits as the width needs, row by row.
    """
    out = [torch.zeros(0, dtype=torch.uint8, device=keys.device)]
    for mine, cells, size, bits in _groups(group, keys, widths, rows, share, words):
        table = torch.full((size,), (1 << bits) - 1, dtype=torch.int64, device=keys.device)
        table.scatter_reduce_(0, cells.view(-1), numbers[mine].expand_as(cells).reshape(-1), "amin")
        out.append(pack(table[None], bits)[0])
    return torch.cat(out)


def decode(
    packed: Tensor, group: Tensor, keys: Tensor, widths: Sequence[int], rows: int, share: float, words: Tensor
) -> Tensor:
    """The numbers ``[k]`` that uint8 ``[w]`` holds, none larger than what :func:`encode` was given. Padding may follow.

    Raises:
        PayloadError: too few bytes.
    """
    out, at = torch.zeros_like(keys), 0
    for mine, cells, size, bits in _groups(group, keys, widths, rows, share, words):
        end = at + packed_bytes(size, bits)
        if end > packed.numel():
            raise PayloadError(f"truncated payload: field 'cells' needs bytes up to {end} of {packed.numel()}")
        table = unpack(packed[None, at:end], bits, size)[0].long()
        out[mine] = table[cells].amax(dim=0)
        at = end
    return out


def _groups(
    group: Tensor, keys: Tensor, widths: Sequence[int], rows: int, share: float, words: Tensor
) -> Iterator[tuple[Tensor, Tensor, int, int]]:
    """For each group that needs cells: its keys' positions ``[s]``, their cells ``[R, s]``, and number and bits of cells."""
    coefficients = hash_coefficients(words.reshape(-1)[: 2 * rows], 1)
    for g, width in enumerate(widths):
        mine = (group == g).nonzero()[:, 0]
        bits = (width - 1).bit_length()
        if mine.numel() and bits:
            cols = math.ceil(share * mine.numel())
            row = torch.arange(rows, device=keys.device)[:, None] * cols
            yield mine, polynomial_hash(coefficients, keys[mine]) % cols + row, rows * cols, bits
