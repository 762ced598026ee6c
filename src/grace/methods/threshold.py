from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import out_of_range
from grace.kernels import pack, packed_bytes, select_at_least, unpack
from grace.method import Compressor, Facts
from grace.methods.topk import index_bits
from grace.random import Stream
from grace.registry import register

_DENSE = -1  # in place of the count: all n values follow, without indices


@register(
    "threshold", communicator="allgather", memory="residual", family="sparsification", aliases=("thresholdcompressor",)
)
@dataclass(frozen=True, slots=True)
class Threshold(Compressor):
    """Threshold-v: only the numbers whose magnitude exceeds v.

    ``C(x)_i = x_i if |x_i| > v, else 0``; with ``relative``, v is in units of the root mean square of x

    Args:
        v: the threshold, > 0; in gradient units, or times the root mean square of x.
        relative: whether v is relative.
    Wire:
        a count (int32), the kept values (float32), then their ascending indices, packed: 32 + nnz (32 + ceil(log2 n))
        bits; or -1 and all n values where that is smaller. Data-dependent, so one more small round exchanges the
        sizes of all tensors of a bucket.
    Bias:
        biased; every dropped number is at most v, so |x - C(x)|^2 <= (n - nnz) v^2; no uniform delta.
    Differs from the paper:
        ``relative`` is new: no absolute v suits every model.
    Example:
        >>> method("threshold:v=3,relative=true")
        ErrorFeedback(method=Allgather(compressor=Threshold(v=3, relative=True)), beta=1.0, gamma=1.0)

    Reference:
        Dutta et al., "On the Discrepancy between the Theoretical Analysis and Practical Implementations of Compressed
        Communication for Distributed Deep Learning", AAAI 2020, arXiv 1911.08250.
    """

    varies: ClassVar[bool] = True
    v: float = 0.01
    relative: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.v < math.inf):
            raise out_of_range("threshold", "v", self.v, "0 < v < inf")
        if not isinstance(self.relative, bool):
            raise out_of_range("threshold", "relative", self.relative, "True, False")

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        n, bits = rows.shape[1], index_bits(rows.shape[1])
        encoded = []
        for row in rows[:, None]:  # [1, n]
            limit = self.v * _rms(row) if self.relative else self.v
            index = select_at_least(row[0], limit, strict=True)
            if 4 * index.numel() + packed_bytes(index.numel(), bits) < 4 * n:
                count = row.new_tensor([[index.numel()]], dtype=torch.int32)
                encoded.append(wires.join(count, row[:, index], pack(index.view(1, -1), bits)))
                if keep_rest:
                    row[:, index] = 0.0
            else:
                encoded.append(wires.join(row.new_tensor([[_DENSE]], dtype=torch.int32), row))
                if keep_rest:
                    row.zero_()
        return torch.nn.utils.rnn.pad_sequence([wire[0] for wire in encoded], batch_first=True)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n, bits = out.shape[1], index_bits(out.shape[1])
        for one, row in zip(wire[:, None], out[:, None], strict=True):
            head = ("count", torch.int32, 1)
            count = int(wires.split(one, [head], slack=True)[0])
            if count == _DENSE:
                row.add_(wires.split(one, [head, ("values", torch.float32, n)], slack=True)[1], alpha=scale)
                continue
            wires.checked_index("count", torch.tensor(count), n + 1)
            fields = [head, ("values", torch.float32, count), ("indices", torch.uint8, packed_bytes(count, bits))]
            _, values, packed = wires.split(one, fields, slack=True)
            index = wires.checked_index("indices", unpack(packed, bits, count).long(), n)
            row.scatter_add_(1, index, values * scale)

    def facts(self, n: int) -> Facts:
        return Facts()


def _rms(row: Tensor) -> float:
    return float(torch.linalg.vector_norm(row, dtype=torch.float64)) / math.sqrt(row.numel())
