from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import out_of_range
from grace.kernels import pack, packed_bytes, select_topk, unpack
from grace.method import Compressor, Facts
from grace.random import Stream
from grace.registry import register


def kept(ratio: float, n: int) -> int:
    """How many of n numbers a ratio keeps: ``max(1, ceil(ratio n))``; a ratio that is off by rounding does not count."""
    return max(1, min(n, math.ceil(ratio * n - 1e-9 * n)))


def index_bits(n: int) -> int:
    """Bits of an index below n: ``ceil(log2 n)``, at least 1."""
    return max(1, (n - 1).bit_length())


@register("topk", communicator="allgather", memory="residual", family="sparsification", aliases=("topkcompressor",))
@dataclass(frozen=True, slots=True)
class TopK(Compressor):
    """Top-k: only the k numbers of largest magnitude.

    ``C(x)_i = x_i if i is among the k largest |x_i|, else 0``, with ``k = max(1, ceil(ratio n))``

    Args:
        ratio: share of the elements that is kept, in (0, 1].
    Wire:
        k values (float32), then their indices in ascending order, packed: k (32 + ceil(log2 n)) bits, one round.
    Bias:
        biased; delta = k/n. Exact for at most k non-zero numbers.
    Differs from the paper:
        the paper estimates the threshold on a sample; this selection is exact, and of equal magnitudes the first wins.
    Example:
        >>> method("topk:ratio=0.001")
        ErrorFeedback(method=Allgather(compressor=TopK(ratio=0.001)), beta=1.0, gamma=1.0)

    Reference:
        Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017, arXiv 1704.05021; with
        memory: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599.
    """

    ratio: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise out_of_range("topk", "ratio", self.ratio, "0 < ratio <= 1")

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        n = rows.shape[1]
        index = select_topk(rows, kept(self.ratio, n))  # [b, k]
        wire = wires.join(rows.gather(1, index), pack(index, index_bits(n)))
        if keep_rest:
            rows.scatter_(1, index, 0.0)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n = out.shape[1]
        k, bits = kept(self.ratio, n), index_bits(n)
        values, packed = wires.split(
            wire, [("values", torch.float32, k), ("indices", torch.uint8, packed_bytes(k, bits))]
        )
        index = wires.checked_index("indices", unpack(packed, bits, k).long(), n)
        out.scatter_add_(1, index, values * scale)

    def facts(self, n: int) -> Facts:
        k = kept(self.ratio, n)
        return Facts(contraction=k / n, payload=4 * k + packed_bytes(k, index_bits(n)))
