"""The count sketch (Charikar, Chen and Farach-Colton, 2002): sketchedsgd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.kernels import add_scaled_, sketch_add_, sketch_hashes, sketch_query
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
        b, n = rows.shape
        sketch = torch.zeros(b, self.rows, self.cols, dtype=torch.float64, device=rows.device)
        for piece, cells, signs in sketch_hashes(rng.words(3 * self.rows, rows.device), self.rows, n, self.cols):
            sketch_add_(sketch, rows[:, piece], cells, signs)
        wire = sketch.mul_(self._unit(n)).float().view(b, -1)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        (b, n), largest = out.shape, torch.finfo(torch.float32).max
        (cells_,) = wires.split(wire.view(torch.uint8), [("sketch", torch.float32, self.rows * self.cols)])
        sketch = cells_.view(b, self.rows, self.cols)
        for piece, cells, signs in sketch_hashes(rng.words(3 * self.rows, out.device), self.rows, n, self.cols):
            estimate = sketch_query(sketch, cells, signs).double().mul_(1 / self._unit(n)).clamp_(-largest, largest)
            add_scaled_(out[:, piece], estimate.float(), scale)

    def _unit(self, n: int) -> float:
        return 2.0 ** -n.bit_length()

    def facts(self, n: int) -> Facts:
        return Facts(deterministic=False, payload=4 * self.rows * self.cols)
