"""Numbers at places that all ranks know already: blockrandomk with a leader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.random import Stream


@dataclass(frozen=True, slots=True)
class Positions(Compressor):
    """The values at the positions ``[k]``; the network sums them."""

    summable: ClassVar[bool] = True
    index: Tensor

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        wire = rows[:, self.index]
        if keep_rest:
            rows[:, self.index] = 0.0
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        out[:, self.index] += wire * scale

    def facts(self, n: int) -> Facts:
        return Facts(contraction=0.0, payload=4 * self.index.numel())
