"""Rounding to a 16-bit float: what fp16 and bf16 share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.kernels import TensorList, add_scaled_, encode_casts_many, split_spans, sum_casts_many
from grace.random import Stream


@dataclass(frozen=True, slots=True)
class Cast(Compressor):
    """Rounding to a 16-bit float, to nearest even."""

    summable: ClassVar[bool] = True
    predivide: ClassVar[bool] = True
    overflows: ClassVar[bool] = True
    handles_many: ClassVar[bool] = True
    rounds_to: ClassVar[torch.dtype]
    relative_error: ClassVar[float]  # of a normal number

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        if not keep_rest:
            return rows.to(self.rounds_to)
        largest = torch.finfo(self.rounds_to).max  # a memory keeps what lies outside the range
        wire = torch.empty_like(rows, dtype=self.rounds_to)
        for span in split_spans(*rows.shape):
            part = rows[span.row, span.columns]
            wire[span.row, span.columns] = part.clamp(-largest, largest)
            part.sub_(wire[span.row, span.columns].float())
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        wires.check_shape("numbers", wire, out.shape)
        add_scaled_(out, wire, scale)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_casts_many(message, many, self.rounds_to)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        sum_casts_many(rows, many, self.rounds_to, scale)
        return many.all_set

    def facts(self, n: int) -> Facts:
        return Facts(contraction=1 - self.relative_error**2, payload=2 * n)
