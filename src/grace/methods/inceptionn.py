"""INCEPTIONN: a network-centric co-design to accelerate training (Li et al., MICRO 2018).

Letters: a number's tag says how many bits it has: 0 none, 1 eight, 2 sixteen, 3 all thirty-two; r = ceil(p/2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Range
from grace.errors import PayloadError
from grace.kernels import add_scaled_, pack, packed_bytes, unpack
from grace.random import Stream
from grace.registry import register

_WIDE = 15  # fractional bits under tag 2


@register("inceptionn", communicator="allgather", family="quantization", cases=["", "p=6,relative=false", "p=14"])
@dataclass(frozen=True, slots=True)
class Inceptionn(Compressor):
    """INCEPTIONN: fixed-point numbers of 0, 8, 16 or 32 bits, as many as their size needs for an absolute error bound.

    ``C(x)_i = sgn(x_i) floor(|x_i| 2^f) / 2^f``, with f = 7 + p - r under tag 1 (|x_i| >= 2^-p) and 15 under tag 2
    (|x_i| >= 2^(r-p)); tag 0 (less than 2^-p) is 0, and tag 3 (at least 1) is x_i itself

    Args:
        p: the bound on the error is 2^-p; 6 to 14.
        relative: whether the bound is in units of 2^ceil(log2 max|x|), instead of gradient units.
    Wire:
        the exponent of the unit (int8, if relative), the tags, packed to 2 bits, then all 8-bit, 16-bit and 32-bit
        numbers: 2 n + 8 n1 + 16 n2 + 32 n3 bits. Data-dependent, so one more small round exchanges the sizes of
        all tensors of a bucket.
    Bias:
        biased towards zero; no error exceeds the number itself, nor 2^-p; absolute, so no delta.
    Differs from the paper:
        the scale of the 8 bits: the published one misses the bound, and so would p above 14. ``relative`` is new:
        today's gradients are far below 1.
    Example:
        >>> method("inceptionn:p=8")
        Allgather(compressor=Inceptionn(p=8, relative=True))

    Reference:
        Li, Park, Alian et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep
        Neural Networks", MICRO 2018, doi 10.1109/MICRO.2018.00023.
    """

    varies: ClassVar[bool] = True
    p: Annotated[int, Range(6, 14)] = 10
    relative: bool = True

    @property
    def _narrow(self) -> int:
        """Fractional bits under tag 1: 7 + p - r."""
        return 7 + self.p // 2

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        encoded = []
        for row in rows[:, None]:  # [1, n]
            exponent = _exponent(row) if self.relative else 0
            size = row.abs() * 2.0**-exponent
            bounds = size.new_tensor([2.0**-self.p, 2.0 ** -(self.p // 2), 1.0])
            tag = torch.bucketize(size, bounds, right=True)  # [1, n] in [0, 3]
            sign = (row < 0).to(torch.int32)
            few, many = tag == 1, tag == 2
            eight = (size[few] * 2.0**self._narrow).to(torch.int32) | sign[few] << 7
            sixteen = (size[many] * 2.0**_WIDE).to(torch.int32) | sign[many] << 15
            fields = [pack(tag, 2), pack(eight[None], 8), pack(sixteen[None], 16), row[tag == 3][None]]
            if self.relative:
                fields.insert(0, torch.tensor([[exponent]], dtype=torch.int8, device=row.device))
            wire = wires.join(*fields)
            encoded.append(wire[0])
            if keep_rest:
                self.decompress_add_(wire, row, -1.0, rng)
        return torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n = out.shape[1]
        head = [("exponent", torch.int8, int(self.relative)), ("tags", torch.uint8, packed_bytes(n, 2))]
        for one, row in zip(wire[:, None], out[:, None], strict=True):
            exponent, packed = wires.split(one, head, slack=True)
            tag = unpack(packed, 2, n)
            counts = [int((tag == kind).sum()) for kind in (1, 2, 3)]
            streams = [("bytes", torch.uint8, counts[0]), ("words", torch.uint8, 2 * counts[1])]
            *_, eight, words, raw = wires.split(one, [*head, *streams, ("raw", torch.float32, counts[2])], slack=True)
            if not bool(raw.isfinite().all()):
                raise PayloadError("field 'raw' must be finite")
            unit = int(exponent) if self.relative else 0
            if unit < -126:
                raise PayloadError(f"field 'exponent' must be in [-126, 127], got {unit}")
            value = torch.zeros_like(row)
            value[tag == 1] = _to_signed(eight.to(torch.int32), 7).mul_(2.0 ** (unit - self._narrow))
            value[tag == 2] = _to_signed(unpack(words, 16, counts[1]).to(torch.int32), 15).mul_(2.0 ** (unit - _WIDE))
            value[tag == 3] = raw
            add_scaled_(row, value, scale)

    def facts(self, n: int) -> Facts:
        return Facts()


def _exponent(row: Tensor) -> int:
    """ceil(log2 max|x|), between -126 and 127: larger numbers travel under tag 3, smaller ones lose bits."""
    mantissa, exponent = row.abs().amax().frexp()  # mantissa in [1/2, 1)
    return max(-126, min(127, int(exponent) - int(mantissa == 0.5)))


def _to_signed(code: Tensor, bits: int) -> Tensor:
    """Sign and magnitude ``[1, m]`` -> float32 ``[m]``."""
    size = (code & ((1 << bits) - 1)).float()
    return torch.where(code >> bits > 0, -size, size)[0]
