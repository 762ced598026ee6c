from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import CompositionError, PayloadError, out_of_range
from grace.kernels import pack, pack_trits, packed_bytes, packed_trits_bytes, spans, unpack, unpack_trits
from grace.method import Compressor, Facts
from grace.random import Stream
from grace.registry import register


def positive(rows: Tensor, rng: Stream, first: int = 0) -> Tensor:
    """``[b, n]`` bool: x > 0; a zero at position i is positive if i + rank + step is odd, so that zeros of several
    workers cancel, and a zero of all of them does not drift.
    """
    bits = rows > 0
    if not bool(rows.all()):
        parity = (
            torch.arange(rows.shape[1], device=rows.device).add_((rng.rank or 0) + rng.step + first).bitwise_and_(1)
        )
        bits |= (rows == 0) & parity.bool()
    return bits


@register("signsgd", communicator="allgather", family="quantization", aliases=("signsgdcompressor",))
@dataclass(frozen=True, slots=True)
class SignSGD(Compressor):
    """SignSGD with majority vote: one bit per element, and the sign of the sum of signs.

    ``sgn(sum over workers of sgn(x_w))``: -1, 0 or 1; a tie is 0

    Args:
        zero: how a zero votes: "parity" (+ or - by position, rank and step, so that such votes cancel), "abstain" (three
            values, five to a byte), or "plus".
    Wire:
        n bits (abstain: 1.6 n), one round.
    Bias:
        biased, neither scaled nor averaged: the step size is the optimizer's, about 1e-4. No delta; a memory is refused.
    Differs from the paper:
        zeros: the paper does not say how they vote.
    Example:
        >>> method("signsgd")
        Allgather(compressor=SignSGD(zero='parity'))

    Reference:
        Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018, arXiv 1802.04434;
        majority vote: Bernstein et al., ICLR 2019, arXiv 1810.05291.
    """

    aggregation: ClassVar[Literal["mean", "majority"]] = "majority"
    zero: Literal["parity", "abstain", "plus"] = "parity"

    def __post_init__(self) -> None:
        if self.zero not in ("parity", "abstain", "plus"):
            raise out_of_range("signsgd", "zero", self.zero, "'parity', 'abstain', 'plus'")

    def with_memory(self) -> Compressor:
        raise CompositionError(
            "signsgd sends signs without a scale, and a memory of their error would grow without bound; "
            "use efsignsgd, which scales them, or memory=none"
        )

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        b, n = rows.shape
        wire = rows.new_empty(b, self._size(n), dtype=torch.uint8)
        for span in spans(b, n):
            part = rows[span.row, None, span.columns]  # [1, m]
            if self.zero == "abstain":
                wire[span.row, span.trits] = pack_trits(part.sign().add_(1))
            else:
                plus = positive(part, rng, span.start) if self.zero == "parity" else part >= 0
                wire[span.row, span.bits(1)] = pack(plus, 1)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        b, n = out.shape
        (votes,) = wires.split(wire, [("votes", torch.uint8, self._size(n))])
        if self.zero == "abstain" and bool((votes > 242).any()):
            raise PayloadError("field 'votes' must be in [0, 242]")
        for span in spans(b, n):
            part = out[span.row, None, span.columns]  # [1, m]
            if self.zero == "abstain":
                sign = unpack_trits(votes[span.row, None, span.trits], len(span)).to(out.dtype).sub_(1)
            else:
                sign = unpack(votes[span.row, None, span.bits(1)], 1, len(span)).to(out.dtype).mul_(2).sub_(1)
            part.add_(sign, alpha=scale)

    def _size(self, n: int) -> int:
        return packed_trits_bytes(n) if self.zero == "abstain" else packed_bytes(n, 1)

    def facts(self, n: int) -> Facts:
        return Facts(payload=self._size(n))
