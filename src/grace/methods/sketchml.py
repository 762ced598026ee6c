"""SketchML: accelerating training with data sketches (Jiang et al., SIGMOD 2018).

Letters: q buckets, of which z hold negative numbers; k non-zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Range, Share
from grace.kernels import Chosen, MinMaxCode, TensorList, choose_minmax_many
from grace.kernels.index_codes.codes import IndexCode, pad
from grace.kernels.minmax_sketch.codes import add_minmax_, write_minmax_
from grace.kernels.quantiles.samples import SMALL
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
        encoded = [write_minmax_(row, self._code, rng.fork(j), rng, keep_rest=keep_rest) for j, row in enumerate(rows)]
        return pad(encoded)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        for part, row in zip(wire[:, None], out, strict=True):  # [1, w], [n]
            add_minmax_(part, row, scale, self._code, rng)

    @property
    def counted(self) -> MinMaxCode:
        return self._code

    def choose_many_(self, many: TensorList, rng: Stream, code: MinMaxCode) -> Chosen:
        return choose_minmax_many(many.like, many, code, rng.step)

    @property
    def _code(self) -> MinMaxCode:
        return MinMaxCode(self.quantiles, self.groups, self.rows, self.share, self.sample, self.index)

    def facts(self, n: int) -> Facts:
        no_hash = self.groups >= self.quantiles  # each bucket is a group of its own
        return Facts(deterministic=no_hash and (n <= SMALL or self.sample == 1), randomness="shared")
