"""Numbers as signed powers of two in four bits: varsparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.errors import PayloadError
from grace.kernels.index_lists.codes import IndexCode, pad
from grace.kernels.places import add_at_
from grace.methods.common import coded_wire
from grace.random import Stream

_BIAS = 127  # of the exponent on the wire: 1 to 254 for 2**-126 to 2**127
_SPAN = 7  # powers of two below the largest that can be sent


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
            mantissa, exponent = row.abs().frexp()  # [0.5, 1) 2**exponent
            largest = int(torch.where(row == 0, -1000, exponent).amax()) - 1
            below = largest - (exponent - (mantissa < 0.75).to(exponent.dtype)).clamp_(max=largest)
            sent = (row != 0) & (below <= _SPAN) & (largest > -_BIAS)
            index = sent.nonzero()[:, 0]  # [k]
            codes = below[index] | ((row[index] < 0) << 3)
            head = torch.tensor([max(0, largest + _BIAS)], dtype=torch.uint8, device=row.device)
            encoded.append(coded_wire.join(head, index, codes, 4, row.numel(), self.index))
            if keep_rest:
                row[index] -= _values(largest, codes)
        return pad(encoded)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        for one, row in zip(wire[:, None], out, strict=True):  # [1, w], [n]
            largest, index, codes = coded_wire.split(one, ("exponent", torch.uint8, 1), 4, row.numel(), self.index)
            if int(largest) > 2 * _BIAS:
                raise PayloadError(f"field 'exponent' must be at most {2 * _BIAS}, got {int(largest)}")
            add_at_(row, 0, index, _values(int(largest) - _BIAS, codes) * scale)

    def facts(self, n: int) -> Facts:
        return Facts()


def _values(largest: int, codes: Tensor) -> Tensor:
    powers = [2.0 ** (largest - below) for below in range(_SPAN + 1)]
    size = torch.tensor(powers, dtype=torch.float32, device=codes.device)[codes & _SPAN]
    return torch.where(codes >> 3 == 1, -size, size)
