"""The wires of sketchml, one row at a time.

Letters: n numbers, of which k are not 0; q buckets, of which z hold negative numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace import wire as wires
from grace.kernels.index_codes import codes as index_codes
from grace.kernels.minmax_sketch import sketch
from grace.kernels.minmax_sketch.groups import BucketGroups
from grace.kernels.minmax_sketch.parts import MinMaxCode
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.places import add_at_
from grace.kernels.quantiles import quantile_buckets
from grace.kernels.quantiles.samples import check_means, sample_columns
from grace.random import Stream


def write_minmax_(row: Tensor, code: MinMaxCode, rng: Stream, hashes: Stream, *, keep_rest: bool) -> Tensor:
    """A finite ``row [n]`` -> wire uint8 ``[w]``: what is not 0. With ``keep_rest`` the row keeps what the wire leaves out.
    ``rng`` draws samples; both sides have ``hashes``.
    """
    index = (row != 0).nonzero()[:, 0]  # [k]
    wire = _encode(row[None, index], index, row.numel(), code, rng, hashes)
    if keep_rest:
        index, values = _decode(wire[None], row.numel(), code, hashes)
        row[index] -= values
    return wire


def add_minmax_(wire: Tensor, out: Tensor, scale: float, code: MinMaxCode, hashes: Stream) -> None:
    """``out [n]`` += scale times what a wire ``[1, w]`` of :func:`write_minmax_`, which padding may follow, says.

    Raises:
        PayloadError: a count, mean, group, list or bucket that no sender writes.
    """
    index, values = _decode(wire, out.numel(), code, hashes)
    add_at_(out, 0, index, values * scale)


def _encode(values: Tensor, index: Tensor, n: int, code: MinMaxCode, rng: Stream, hashes: Stream) -> Tensor:
    """Values ``[1, k]`` at places ``[k]`` -> wire ``[w]``."""
    k, q = index.numel(), code.q
    if k == 0:
        return wires.join(values.new_zeros(1, 2, dtype=torch.int32), values.new_zeros(1, q))[0]
    means, bucket, (z,) = quantile_buckets(values, sample_columns(values, code.sample, rng), q, True)
    sides = BucketGroups.of(q, int(z), code.groups)
    group, number = sides.locate(bucket[0])  # [k] each
    words = hashes.words(code.rows, index.device)
    cells = sketch.encode(number, group, index, sides.widths, code.rows, code.share, words)
    head = torch.tensor([[k, int(z)]], dtype=torch.int32, device=index.device)
    places = index_codes.encode(index[None], n, code.index)
    return wires.join(head, means, pack(group[None], sides.bits), places, cells[None])[0]


def _decode(wire: Tensor, n: int, code: MinMaxCode, hashes: Stream) -> tuple[Tensor, Tensor]:
    """Wire ``[1, w]`` -> places ``[k]`` and values ``[k]``."""
    q = code.q
    head = [("count", torch.int32, 1), ("negative", torch.int32, 1), ("means", torch.float32, q)]
    count, negative, means = wires.split(wire, head, slack=True)
    k = int(wires.check_index("count", count, n + 1))
    z = int(wires.check_index("negative", negative, q + 1))
    sides = BucketGroups.of(q, z, code.groups)
    packed = wires.split(wire, [*head, ("groups", torch.uint8, packed_bytes(k, sides.bits))], slack=True)[-1]
    group = wires.check_index("groups", unpack(packed, sides.bits, k)[0].long(), sides.total)
    at = code.head + packed.shape[1]
    (index,), used = index_codes.take(wire[:, at:], n, k, code.index)
    words = hashes.words(code.rows, wire.device)
    number = sketch.decode(wire[0, at + used :], group, index, sides.widths, code.rows, code.share, words)
    bucket = wires.check_index("cells", sides.code_of(group, number), q)
    return index, check_means(means)[0, bucket]
