"""signSGD with majority vote (Bernstein et al., ICML 2018 and ICLR 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Literal

from torch import Tensor

from grace.contract.compressor import Compressor, Fused
from grace.contract.facts import Facts
from grace.errors import CompositionError
from grace.kernels import (
    TensorList,
    encode_votes,
    encode_votes_many,
    sum_votes,
    take_majority,
    take_majority_many,
    votes_bytes,
)
from grace.methods.common.parity import with_phase
from grace.random import Stream
from grace.registry import register


@register("signsgd", communicator="allgather", family="quantization", cases=["", "zero=abstain", "zero=plus"])
@dataclass(frozen=True, slots=True)
class SignSGD(Fused):
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
    handles_many: ClassVar[bool] = True
    zero: Literal["parity", "abstain", "plus"] = "parity"

    def with_memory(self) -> Compressor:
        raise CompositionError(
            "signsgd sends signs without a scale, and a memory of their error would grow without bound; "
            "use efsignsgd, which scales them, or memory=none"
        )

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        if self.zero != "parity":
            return encode_votes(rows, self.zero, 0, memory, rest)
        return with_phase(lambda phase: encode_votes(rows, "parity", phase, memory, rest), rng, [rest])

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        sum_votes(received, out, self.zero, scale, add=add)

    def aggregate_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream) -> None:
        take_majority(received, out, self.zero, scale)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        if self.zero != "parity":
            return encode_votes_many(message, many, self.zero, 0)
        return with_phase(
            lambda phase: encode_votes_many(message, many, "parity", phase), rng, chain([message], many.rests or ())
        )

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return take_majority_many(rows, many, self.zero, scale)

    def passes(self, n: int) -> int | None:
        return 1

    def facts(self, n: int) -> Facts:
        return Facts(payload=votes_bytes(n, self.zero))
