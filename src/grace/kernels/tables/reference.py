"""The specification of rounding to tables, in plain torch."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace import wire as wires
from grace.kernels.blocks import repeat_by_block
from grace.kernels.levels import block_divide
from grace.kernels.packing import pack, unpack
from grace.kernels.rotation import rotate_blocks_back

if TYPE_CHECKING:
    from grace.random import Stream


def encode_entries(
    y: Tensor,
    bounds: Tensor,
    block: int,
    table: tuple[int, ...],
    world: int,
    rng: Stream,
    shared: Stream,
    rows: Tensor | None = None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> Tensor:
    n = y.shape[1]
    codes = y.new_zeros(world, math.ceil(n / world), dtype=torch.uint8)
    own = round_to_table(y, bounds, block, table, rng.uniform(n, y.device).view(1, n))
    codes.view(1, -1)[:, :n] = own
    if rest is not None:
        assert rows is not None
        said = _means(_on(table, torch.int64, y.device)[own.long()], bounds, block, 2 / table[-1])
        torch.sub(rows if memory is None else rows + memory, rotate_blocks_back(said, block, shared), out=rest)
    return pack(codes, _bits(table))


def sum_entries(received: Tensor, table: tuple[int, ...], count: int, bits: int) -> Tensor:
    codes = unpack(received, _bits(table), count)
    return pack(_on(table, torch.int64, codes.device)[codes.long()].sum(dim=0, keepdim=True), bits)


def decode_entries(sums: Tensor, bits: int, g: int, bounds: Tensor, out: Tensor, block: int, shared: Stream) -> None:
    n, world = out.shape[1], sums.shape[0]
    total = wires.check_index("sums", unpack(sums, bits, math.ceil(n / world)).int(), g * world + 1).view(1, -1)[:, :n]
    out.copy_(rotate_blocks_back(_means(total, bounds, block, 2 / (world * g)), block, shared))


def round_to_table(y: Tensor, bounds: Tensor, block: int, table: tuple[int, ...], u: Tensor) -> Tensor:
    """Codes ``[1, n]`` uint8 of y ``[1, n]`` for random numbers u ``[1, n]`` in [0, 1)."""
    v = block_divide(y, bounds, block)[1].clamp_(-1, 1).add_(1).mul_(table[-1] / 2)
    entries = _on(table, v.dtype, v.device)
    near = v.round()
    v = torch.where((v - near).abs() <= 1e-6 * v.clamp_min(1.0), near, v)
    low = torch.bucketize(v, entries, right=True).sub_(1).clamp_(0, len(table) - 2)
    lo, hi = entries[low], entries[low + 1]
    return (low + (u * (hi - lo) < v - lo)).to(torch.uint8)


def _means(sums: Tensor, bounds: Tensor, block: int, factor: float) -> Tensor:
    share = sums.double().mul_(factor).sub_(1).float()
    return share.mul_(repeat_by_block(bounds, sums.shape[1], block))


def _bits(table: tuple[int, ...]) -> int:
    return (len(table) - 1).bit_length()


@functools.lru_cache(maxsize=64)
def _on(table: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """T as a tensor, copied to a device once."""
    return torch.tensor(table, dtype=dtype, device=device)
