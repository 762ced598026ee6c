"""The count sketch (Charikar, Chen and Farach-Colton, 2002): sketchedsgd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.kernels import add_sketch_, count_sketch
from grace.random import Stream


@dataclass(frozen=True, slots=True)
class CountSketch(Compressor):
    """A count sketch: linear, so that the network sums it; it decodes to an estimate of each number.

    ``S[j, h_j(i)] += s_j(i) x_i;  C(x)_i = median over j of s_j(i) S[j, h_j(i)]``, with hashes h, s that ranks share

    Sums are sent divided by the power of two above n: they cannot overflow, whatever x is. Wire: R c float32.
    """

    summable: ClassVar[bool] = True
    randomness: ClassVar[Literal["shared", "private"]] = "shared"
    rows: int
    cols: int

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        wire = count_sketch(rows, rng.words(3 * self.rows, rows.device), self.rows, self.cols)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        (cells,) = wires.split(wire.view(torch.uint8), [("sketch", torch.float32, self.rows * self.cols)])
        add_sketch_(out, cells, rng.words(3 * self.rows, out.device), self.rows, scale)

    def facts(self, n: int) -> Facts:
        return Facts(deterministic=False, randomness="shared", payload=4 * self.rows * self.cols)
