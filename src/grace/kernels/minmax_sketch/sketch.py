"""SketchML's MinMaxSketch: a small number for each key, in fewer cells than keys; it is never read too large.

A group of s keys has R rows of ``ceil(share s)`` cells. Each key is hashed to one cell of each row, which keeps the
least number that falls into it; the largest of a key's R cells is what is read. Letters: k keys in all; G groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from grace.errors import PayloadError
from grace.kernels.count_sketches import hash_coefficients, polynomial_hash
from grace.kernels.packing import pack, packed_bytes, unpack


def encode(
    numbers: Tensor, group: Tensor, keys: Tensor, widths: Sequence[int], rows: int, share: float, words: Tensor
) -> Tensor:
    """Numbers ``[k]``, below the width of their group ``[k]``; keys ``[k]`` below 2**31 - 1; 2 R random words.

    Returns uint8 ``[w]``: group by group, the cells in as few bits as the width needs, row by row.
    """
    cells, tables = _layout(group, keys, widths, rows, share, words)
    least = torch.full(
        (sum(size for size, _ in tables),), 1 << max(bits for _, bits in tables), device=keys.device, dtype=torch.int64
    )
    least.scatter_reduce_(0, cells.view(-1), numbers.expand_as(cells).reshape(-1), "amin")
    out = [torch.zeros(0, dtype=torch.uint8, device=keys.device)]
    for table, (_, bits) in zip(torch.split(least, [size for size, _ in tables]), tables, strict=True):
        if bits and table.numel():
            out.append(pack(table.clamp_max((1 << bits) - 1)[None], bits)[0])
    return torch.cat(out)


def decode(
    packed: Tensor, group: Tensor, keys: Tensor, widths: Sequence[int], rows: int, share: float, words: Tensor
) -> Tensor:
    """The numbers ``[k]`` that uint8 ``[w]`` holds, none larger than :func:`encode` was given. Padding may follow.

    Raises:
        PayloadError: too few bytes.
    """
    cells, tables = _layout(group, keys, widths, rows, share, words)
    least, at = [keys.new_zeros(0)], 0
    for size, bits in tables:
        if not bits or not size:
            least.append(keys.new_zeros(size))
            continue
        end = at + packed_bytes(size, bits)
        if end > packed.numel():
            raise PayloadError(f"truncated payload: field 'cells' needs bytes up to {end} of {packed.numel()}")
        least.append(unpack(packed[None, at:end], bits, size)[0].long())
        at = end
    return torch.cat(least)[cells].amax(dim=0)


def _layout(
    group: Tensor, keys: Tensor, widths: Sequence[int], rows: int, share: float, words: Tensor
) -> tuple[Tensor, list[tuple[int, int]]]:
    """The cells ``[R, k]`` of all keys in the tables of all groups, one behind the other; each table's cells, and their
    bits: 0 in a group of one number, whose cells do not travel.
    """
    cols = [math.ceil(share * count) for count in torch.bincount(group, minlength=len(widths)).tolist()]
    starts = [rows * start for start in itertools.accumulate([0, *cols])]
    columns, start = torch.tensor([cols, starts[:-1]], device=keys.device, dtype=torch.int64)[:, group]  # [k] each
    coefficients = hash_coefficients(words.reshape(-1)[: 2 * rows], 1)
    row = torch.arange(rows, device=keys.device, dtype=torch.int64)[:, None] * columns
    cells = polynomial_hash(coefficients, keys) % columns + row + start
    return cells, [(rows * col, (width - 1).bit_length()) for col, width in zip(cols, widths, strict=True)]
