"""3LC: lightweight and effective traffic compression (Lim, Andersen and Kaminsky, MLSys 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Range
from grace.kernels import packed_trits_bytes
from grace.kernels.tensor_list import TensorList
from grace.kernels.ternary import QuarticCode, choose_quartic_many, encode_ternary_many, sum_ternary_many
from grace.kernels.ternary.codes import add_ternary, write_ternary
from grace.kernels.variable_sparse import Chosen
from grace.random import Stream
from grace.registry import register


@register("3lc", communicator="allgather", memory="residual", family="hybrid", cases=["", "zre=false", "s=1.7"])
@dataclass(frozen=True, slots=True)
class ThreeLC(Compressor):
    """3LC: three values, -M, 0 and M, five to a byte, and runs of zeros shortened.

    ``C(x)_i = M rint(x_i / M)`` with ``M = s max |x|``; halves round to even, so that M/2 is 0

    Args:
        s: sparsity, in [1, 2); the larger, the more zeros.
        zre: whether runs of zeros are shortened.
    Wire:
        M (float32), then ceil(n/5) bytes: 32 + 1.6 n bits, one round. With ``zre`` a count (uint32) of the bytes
        follows M, and 2 to 14 bytes of zeros become one: 0.11 n bits for zeros only. Then it is data-dependent, so one
        more small round exchanges the sizes of all tensors of a bucket.
    Bias:
        biased; no error exceeds the number itself; delta = s(2-s)/n. Exact for zeros and one magnitude, if s = 1.
    Differs from the paper:
        the last byte is filled with zeros, not with -1, so that it may belong to a run.
    Example:
        >>> method("3lc:s=1.75,communicator=scatterreduce")
        ErrorFeedback(method=ScatterReduce(compressor=ThreeLC(s=1.75, zre=True)), beta=1.0, gamma=1.0)

    Reference:
        Lim, Andersen and Kaminsky, "3LC: Lightweight and Effective Traffic Compression for Distributed Machine
        Learning", MLSys 2019, arXiv 1802.07389.
    """

    s: Annotated[float, Range(1, below=2)] = 1.0
    zre: bool = True

    @property
    def varies(self) -> bool:  # type: ignore[override]
        """Only runs make the size depend on the data."""
        return self.zre

    @property
    def handles_many(self) -> bool:  # type: ignore[override]
        """True for wires of a fixed size; of others :attr:`counted` says so."""
        return not self.zre

    @property
    def counted(self) -> QuarticCode | None:
        return QuarticCode(self.s) if self.zre else None

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        wire = write_ternary(rows, self.s, zre=self.zre)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        add_ternary(wire, out, scale, zre=self.zre)

    def choose_many_(self, many: TensorList, rng: Stream, code: QuarticCode) -> Chosen:
        return choose_quartic_many(many.like, many, code)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_ternary_many(message, many, self.s)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_ternary_many(rows, many, scale)

    def facts(self, n: int) -> Facts:
        payload = None if self.zre else 4 + packed_trits_bytes(n)
        return Facts(contraction=self.s * (2 - self.s) / n, payload=payload)
