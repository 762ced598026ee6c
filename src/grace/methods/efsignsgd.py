from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import out_of_range
from grace.kernels import block_abs_mean, block_count, pack, packed_bytes, spans, spread, unpack
from grace.method import Compressor, Facts
from grace.methods.signsgd import positive
from grace.random import Stream
from grace.registry import register


@register(
    "efsignsgd", communicator="allgather", memory="residual", family="quantization", aliases=("efsignsgdcompressor",)
)
@dataclass(frozen=True, slots=True)
class EFSignSGD(Compressor):
    """Scaled signs, made to be used with error feedback.

    ``C(x) = (|x|_1 / B) sgn(x)`` in each block of B elements

    Args:
        block: elements that share a scale, >= 1.
    Wire:
        one scale (float32) for each block, then n bits: n + 32 ceil(n/block) bits, one round.
    Bias:
        biased; delta = |x|_1^2 / (B |x|_2^2), at least 1/B, in each block. Exact for equal magnitudes.
    Differs from the paper:
        the paper has one scale for the whole vector. Zeros are + or - by position, rank and step; the bound holds for
        any choice. The memory is in units of the gradient: with a constant learning rate that is the paper's.
    Example:
        >>> method("efsignsgd:block=1024")
        ErrorFeedback(method=Allgather(compressor=EFSignSGD(block=1024)), beta=1.0, gamma=1.0)

    Reference:
        Karimireddy, Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
        ICML 2019, arXiv 1901.09847, algorithm 2.
    """

    block: int = 4096

    def __post_init__(self) -> None:
        if not (isinstance(self.block, int) and self.block >= 1):
            raise out_of_range("efsignsgd", "block", self.block, "a whole number >= 1")

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        b, n = rows.shape
        scales = rows.new_empty(b, block_count(n, self.block))
        signs = rows.new_empty(b, packed_bytes(n, 1), dtype=torch.uint8)
        for span in spans(b, n, self.block):
            part = rows[span.row, None, span.columns]  # [1, m]
            scale, packed = block_abs_mean(part, self.block), pack(positive(part, rng, span.start), 1)
            scales[span.row, span.blocks], signs[span.row, span.bits(1)] = scale, packed
            if keep_rest:
                self._add_(scale, packed, part, -1.0)
        return wires.join(scales, signs)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        b, n = out.shape
        fields = [("scales", torch.float32, block_count(n, self.block)), ("signs", torch.uint8, packed_bytes(n, 1))]
        scales, signs = wires.split(wire, fields)
        wires.checked_scale("scales", scales)
        for span in spans(b, n, self.block):
            scale_, packed = scales[span.row, None, span.blocks], signs[span.row, None, span.bits(1)]
            self._add_(scale_, packed, out[span.row, None, span.columns], scale)

    def _add_(self, scales: Tensor, packed: Tensor, out: Tensor, scale: float) -> None:
        """One piece: scales ``[1, nb]`` and packed signs, added to out ``[1, m]``."""
        sign = unpack(packed, 1, out.shape[1]).to(out.dtype).mul_(2).sub_(1)
        out.add_(sign.mul_(spread(scales, out.shape[1], self.block)), alpha=scale)

    def facts(self, n: int) -> Facts:
        payload = 4 * block_count(n, self.block) + packed_bytes(n, 1)
        return Facts(contraction=1 / min(n, self.block), payload=payload)
