"""The specification of rounding to tables, in plain torch."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace import wire as wires
from grace.compute.host import to_device
from grace.flags.refusals import Refusals
from grace.kernels.blocks import repeat_by_block
from grace.kernels.lookup_table import Chunks, code_bits
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.rotation import rotate_blocks_back
from grace.kernels.stochastic_levels import block_divide
from grace.kernels.tensor_list import TensorList

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
        decoded = _means(_on(table, torch.int64, y.device)[own.long()], bounds, block, 2 / table[-1])
        torch.sub(rows if memory is None else rows + memory, rotate_blocks_back(decoded, block, shared), out=rest)
    return pack(codes, code_bits(table))


def sum_entries(received: Tensor, table: tuple[int, ...], count: int, bits: int) -> Tensor:
    codes = unpack(received, code_bits(table), count)
    return pack(_on(table, torch.int64, codes.device)[codes.long()].sum(dim=0, keepdim=True), bits)


def decode_entries(sums: Tensor, bits: int, g: int, bounds: Tensor, out: Tensor, block: int, shared: Stream) -> None:
    n, world = out.shape[1], sums.shape[0]
    total = wires.check_index("sums", unpack(sums, bits, math.ceil(n / world)).int(), g * world + 1).view(1, -1)[:, :n]
    out.copy_(rotate_blocks_back(_means(total, bounds, block, 2 / (world * g)), block, shared))


def encode_entries_many(
    message: Tensor, many: TensorList, chunks: Chunks, bounds: Tensor, block: int, step: int
) -> None:
    assert many.work is not None
    parts = bounds.split_with_sizes(many.counts(block))
    for t, (x, y, part) in enumerate(zip(many.xs, many.work.xs, parts, strict=True)):
        memory = None if many.memories is None else many.memories[t]
        rest = None if many.rests is None else many.rests[t]
        own, shared = replace(many.streams[t], step=step), replace(many.shared_stream(t, 0), step=step)
        codes = encode_entries(y, part[None], block, chunks.table, chunks.world, own, shared, x.float(), memory, rest)
        message[:, chunks.codes[t] : chunks.codes[t] + codes.shape[1]] = codes


def sum_entries_many(received: Tensor, message: Tensor, many: TensorList, chunks: Chunks) -> None:
    for t, count in enumerate(chunks.counts):
        width, at = packed_bytes(count, code_bits(chunks.table)), chunks.codes[t]
        sums = sum_entries(received[:, at : at + width], chunks.table, count, chunks.bits)[0]
        message[chunks.sums[t] : chunks.sums[t] + len(sums)] = sums


def decode_entries_many(
    sums: Tensor, many: TensorList, chunks: Chunks, bounds: Tensor, block: int, step: int
) -> Tensor:
    flags, parts = [], bounds.split_with_sizes(many.counts(block))
    for t, (x, part) in enumerate(zip(many.xs, parts, strict=True)):
        width, at = packed_bytes(chunks.counts[t], chunks.bits), chunks.sums[t]
        shared = replace(many.shared_stream(t, 0), step=step)
        with Refusals() as refused:
            decode_entries(sums[:, at : at + width], chunks.bits, chunks.table[-1], part[None], x, block, shared)
        flags.append(torch.as_tensor(refused.ok, device=sums.device, dtype=torch.bool))
    return torch.stack(flags)


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
    return share_of(sums, factor).mul_(repeat_by_block(bounds, sums.shape[1], block))


def share_of(sums: Tensor, factor: float) -> Tensor:
    """Float32, like sums, of any shape: what they say in units of A."""
    return sums.double().mul_(factor).sub_(1).float()


@functools.cache
def _on(table: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """T as a tensor, copied to a device once."""
    return to_device(torch.tensor(table, dtype=dtype, device="cpu"), device, waits=True)
