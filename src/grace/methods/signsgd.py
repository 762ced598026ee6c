from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import CompositionError, PayloadError, out_of_range
from grace.kernels import pack, pack_trits, packed_bytes, packed_trits_bytes, unpack, unpack_trits
from grace.method import Compressor, Facts
from grace.random import Stream
from grace.registry import register


def positive(rows: Tensor, rng: Stream) -> Tensor:
    """``[b, n]`` bool: x > 0; a zero at position i is positive if i + rank + step is odd, so that zeros of several
    workers cancel, and a zero of all of them does not drift.
    """
    parity = torch.arange(rows.shape[1], device=rows.device).add_((rng.rank or 0) + rng.step).bitwise_and_(1)
    return (rows > 0) | ((rows == 0) & parity.bool())


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
        if self.zero == "abstain":
            wire = pack_trits(rows.sign().add_(1))
        else:
            wire = pack(positive(rows, rng) if self.zero == "parity" else rows >= 0, 1)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        (packed,) = wires.split(wire, [("votes", torch.uint8, self._size(out.shape[1]))])
        if self.zero == "abstain":
            if bool((packed > 242).any()):
                raise PayloadError("field 'votes' must be in [0, 242]")
            out.add_(unpack_trits(packed, out.shape[1]).to(out.dtype).sub_(1), alpha=scale)
        else:
            out.add_(unpack(packed, 1, out.shape[1]).to(out.dtype).mul_(2).sub_(1), alpha=scale)

    def _size(self, n: int) -> int:
        return packed_trits_bytes(n) if self.zero == "abstain" else packed_bytes(n, 1)

    def facts(self, n: int) -> Facts:
        return Facts(payload=self._size(n))
