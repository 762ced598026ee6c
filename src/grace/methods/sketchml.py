"""SketchML: accelerating training with data sketches (Jiang et al., SIGMOD 2018).

Letters: q buckets, of which z hold negative numbers; k non-zeros; far: how many buckets lie between one and zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Range, Share
from grace.kernels import pack, packed_bytes, quantile_buckets, unpack
from grace.kernels.index_lists import codes as index_lists
from grace.kernels.index_lists.codes import IndexCode
from grace.kernels.places import add_at_
from grace.methods.common import minmax_sketch
from grace.methods.common.bucket_groups import BucketGroups
from grace.methods.common.buckets import SMALL, check_means, sample_columns
from grace.random import Stream
from grace.registry import register


@register("sketchml", communicator="allgather", memory="residual", family="hybrid", cases=["", "memory=residual"])
@dataclass(frozen=True, slots=True)
class SketchML(Compressor):
    """SketchML: the places of the non-zeros, and a sketch of their quantized values. For gradients with many zeros.

    ``C(x)_i = mean of bucket m(i) if x_i is not 0, else 0``: q quantile buckets of the non-zeros as in ``sketch``, and
    m(i) is i's bucket as a MinMaxSketch tells it: the same or one nearer to zero, never across it

    Args:
        quantiles: q, 2 to 256.
        groups: groups of neighboring buckets, each with a sketch of its own, 2 to 256; at most q are used.
        rows: hash functions of a sketch, 1 to 16.
        share: cells of a row for each number, in (0, 1].
        sample: share of the non-zeros that quantiles are taken from where there are more than 2^20 of them, in (0, 1].
        index: how places travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
    Wire:
        k and z (int32), q means (float32); for each non-zero the number of its group (log2(groups) bits) and its index;
        then for each group rows share s cells of ceil(log2(q/groups)) bits for its s numbers. Data-dependent: one more
        small round exchanges the sizes of all tensors of a bucket.
    Bias:
        biased: magnitudes shrink; no delta. No sign is flipped. Exact where the non-zeros are equal.
    Differs from the paper:
        exact quantiles, not those of a streaming sketch, and means instead of midpoints; each index has the number of
        its group, where the paper has a list of indices for each group: the same bits. No Huffman code. A memory by
        default.
    Example:
        >>> method("sketchml:quantiles=256,index=delta").method.compressor.groups
        8

    Reference:
        Jiang, Fu, Yang and Cui, "SketchML: Accelerating Distributed Machine Learning with Data Sketches", SIGMOD 2018,
        doi 10.1145/3183713.3196894.
    """

    varies: ClassVar[bool] = True
    randomness: ClassVar[Literal["shared", "private"]] = "shared"  # both sides hash
    quantiles: Annotated[int, Range(2, 256)] = 16
    groups: Annotated[int, Range(2, 256)] = 8
    rows: Annotated[int, Range(1, 16)] = 2
    share: Share = 0.3
    sample: Share = 0.01
    index: IndexCode = "auto"

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        encoded = []
        for j, row in enumerate(rows):  # [n]
            index = (row != 0).nonzero()[:, 0]  # [k]
            wire = self._encode_row(row[None, index], index, row.numel(), rng.fork(j), rng)
            if keep_rest:
                index, values = self._decode_row(wire[None], row.numel(), rng)
                row[index] -= values
            encoded.append(wire)
        return index_lists.pad(encoded)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        for one, row in zip(wire[:, None], out, strict=True):  # [1, w], [n]
            index, values = self._decode_row(one, row.numel(), rng)
            add_at_(row, 0, index, values * scale)

    def _encode_row(self, values: Tensor, index: Tensor, n: int, rng: Stream, hashes: Stream) -> Tensor:
        """Values ``[1, k]`` at places ``[k]`` -> wire ``[w]``."""
        k, q = index.numel(), self.quantiles
        if k == 0:
            return wires.join(values.new_zeros(1, 2, dtype=torch.int32), values.new_zeros(1, q))[0]
        means, code, (z,) = quantile_buckets(values, sample_columns(values, self.sample, rng), q, True)
        sides = BucketGroups.of(q, int(z), self.groups)
        group, number = sides.locate(code[0])  # [k] each
        words = hashes.words(self.rows, index.device)
        cells = minmax_sketch.encode(number, group, index, sides.widths, self.rows, self.share, words)
        head = torch.tensor([[k, int(z)]], dtype=torch.int32, device=index.device)
        places = index_lists.encode(index[None], n, self.index)
        return wires.join(head, means, pack(group[None], sides.bits), places, cells[None])[0]

    def _decode_row(self, wire: Tensor, n: int, hashes: Stream) -> tuple[Tensor, Tensor]:
        """Wire ``[1, w]`` -> places ``[k]`` and values ``[k]``."""
        q = self.quantiles
        head = [("count", torch.int32, 1), ("negative", torch.int32, 1), ("means", torch.float32, q)]
        count, negative, means = wires.split(wire, head, slack=True)
        k = int(wires.check_index("count", count, n + 1))
        z = int(wires.check_index("negative", negative, q + 1))
        sides = BucketGroups.of(q, z, self.groups)
        packed = wires.split(wire, [*head, ("groups", torch.uint8, packed_bytes(k, sides.bits))], slack=True)[-1]
        group = wires.check_index("groups", unpack(packed, sides.bits, k)[0].long(), sides.total)
        at = 8 + 4 * q + packed.shape[1]
        (index,), used = index_lists.take(wire[:, at:], n, k, self.index)
        words = hashes.words(self.rows, wire.device)
        number = minmax_sketch.decode(wire[0, at + used :], group, index, sides.widths, self.rows, self.share, words)
        code = wires.check_index("cells", sides.code_of(group, number), q)
        return index, check_means(means)[0, code]

    def facts(self, n: int) -> Facts:
        no_hash = self.groups >= self.quantiles  # each bucket is a group of its own
        return Facts(deterministic=no_hash and (n <= SMALL or self.sample == 1))
