"""The specification of the buckets and their wires, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.flags.finite import Flag, flag
from grace.flags.refusals import refuse_unless
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.quantiles import BAD_MEAN, code_bits, quantile_bytes
from grace.kernels.sums import add_scaled_
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each

if TYPE_CHECKING:
    from grace.random import Stream


def quantile_buckets(rows: Tensor, seen: Tensor, q: int, zero_edge: bool) -> tuple[Tensor, Tensor, Tensor]:
    b, m = seen.shape
    j = torch.arange(1, q, device=rows.device, dtype=torch.int64)
    edges = seen.sort(dim=1).values[:, j * m // q]  # [b, q - 1]
    below, above = rows.amin(dim=1) < 0, rows.amax(dim=1) >= 0
    # round(q (share of negatives)): edge z - 1 is then negative, and edge z + 1 is not
    z = (2 * q * (seen < 0).sum(dim=1) + m).div(2 * m, rounding_mode="floor").clamp_(1, q - 1)
    if zero_edge:
        edges = edges.masked_fill((j == z[:, None]) & (below & above)[:, None], 0.0)
    bucket = torch.searchsorted(edges.contiguous(), rows, right=True)
    sums = torch.zeros(b, q, dtype=torch.float64, device=rows.device)
    count = torch.zeros_like(sums).scatter_add_(1, bucket, torch.ones_like(rows, dtype=torch.float64))
    means = sums.scatter_add_(1, bucket, rows.double()).div_(count.clamp_(min=1)).float()
    return means, bucket, torch.where(below & above, z, torch.where(below, q, 0))


def encode_quantiles(
    rows: Tensor,
    q: int,
    zero_edge: bool,
    seen: int,
    rng: Stream,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, Flag]:
    p, n = rows if memory is None else rows + memory, rows.shape[1]
    columns = p if seen == n else p[:, rng.subset(n, seen, rows.device)]
    means, bucket, _ = quantile_buckets(p, columns, q, zero_edge)
    finite = flag(p.isfinite().all())
    wire = wires.join(means, pack(bucket, code_bits(q)))
    if rest is not None:
        largest = torch.finfo(rows.dtype).max  # a bucket that mixes signs may be wider than that
        torch.sub(p, means.gather(1, bucket), out=rest).clamp_(-largest, largest)
    return wire, finite


def sum_quantiles(received: Sequence[Tensor], out: Tensor, q: int, weight: float, *, add: bool = False) -> None:
    n, bits = out.shape[1], code_bits(q)
    fields = [("means", torch.float32, q), ("codes", torch.uint8, packed_bytes(n, bits))]
    if not add:
        out.zero_()
    for wire in received:
        means, packed = wires.split(wire, fields)
        refuse_unless(means.isfinite().all(), lambda: PayloadError(BAD_MEAN))
        code = wires.check_index("codes", unpack(packed, bits, n).long(), q)
        add_scaled_(out, means.gather(1, code), weight)


def encode_quantiles_many(
    message: Tensor, many: TensorList, q: int, zero_edge: bool, seen: tuple[int, ...], step: int
) -> Tensor:
    def encode(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        rng = replace(many.streams[t], step=step)
        return encode_quantiles(x, q, zero_edge, seen[t * many.rows], rng, memory, rest)

    return encode_each(message, many, encode)


def sum_quantiles_many(rows: Tensor, many: TensorList, q: int, weight: float) -> Tensor:
    widths = [quantile_bytes(n, q) for n in many.sizes]
    return sum_each(rows, many, widths, lambda received, out: sum_quantiles(received, out, q, weight))
