"""Numbers as signed powers of two in four bits: varsparse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.kernels import Chosen, CountedCode, TensorList, choose_coded_many, tops_many
from grace.kernels.index_codes.codes import IndexCode, pad
from grace.kernels.sparse_codes import BIAS, SPAN, Powers
from grace.kernels.sparse_codes.wire import add_coded_, write_coded_
from grace.random import Stream

_BIAS64 = 1023  # of the exponent of a float64


@dataclass(frozen=True, slots=True)
class PowersOfTwo(Compressor):
    """Non-zeros as signed powers of two, in four bits each: the nearest one, at most the largest magnitude's and at
    least 2^-7 of that; smaller ones are not sent. Largest magnitudes below 2^-126 count as zero.

    Wire: a count (int32), the largest exponent (uint8), for each number sent 4 bits and its index.
    """

    varies: ClassVar[bool] = True
    index: IndexCode = "auto"

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        encoded = []
        for row in rows:  # [n]
            largest = float(row.abs().amax())
            exponent = math.frexp(largest)[1] - 1 if largest else -BIAS
            front = torch.tensor([max(0, exponent + BIAS)], dtype=torch.uint8, device=row.device)
            bound = 0.75 * 2.0 ** (exponent - SPAN)
            encoded.append(write_coded_(row, front, bound, Powers(), self.index, strict=False, keep_rest=keep_rest))
        return pad(encoded)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        for part, row in zip(wire[:, None], out, strict=True):  # [1, w], [n]
            add_coded_(part, row, scale, Powers(), self.index)

    @property
    def counted(self) -> CountedCode:
        return CountedCode(self.index, False, Powers())

    def choose_many_(self, many: TensorList, rng: Stream, code: CountedCode) -> Chosen:
        top = tops_many(many.like, many)
        exponent = top.frexp().exponent - 1  # of the largest
        fronts = (exponent + BIAS).clamp_min(0).masked_fill(~((top > 0) & top.isfinite()), 0)
        bounds = ((exponent.long() - SPAN + _BIAS64) << 52).view(torch.float64) * 0.75
        return choose_coded_many(fronts.int(), bounds, many, code, strict=False)

    def facts(self, n: int) -> Facts:
        return Facts()
