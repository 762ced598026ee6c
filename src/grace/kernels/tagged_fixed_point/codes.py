"""The wires of inceptionn: a tag of two bits says how many bits a number has.

Letters: b rows of n numbers; under tag 0 a number has no bits, under 1 eight, under 2 sixteen, under 3 all thirty-two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.sums import add_scaled_
from grace.kernels.tagged_fixed_point.parts import WIDE, TaggedCode


def write_tagged(rows: Tensor, code: TaggedCode) -> Tensor:
    """float32 ``[b, n]``, finite -> wire uint8 ``[b, w]``, with zeros after shorter rows: the exponent of the unit (int8, if
    it is relative), the tags, packed, then all 8-bit, 16-bit and 32-bit numbers.
    """
    encoded = []
    for row in rows[:, None]:  # [1, n]
        exponent = _exponent(row) if code.relative else 0
        size = row.abs() * 2.0**-exponent
        bounds = size.new_tensor([2.0**-code.p, 2.0**-code.middle, 1.0])
        tag = torch.bucketize(size, bounds, right=True)  # [1, n] in [0, 3]
        sign = (row < 0).to(torch.int32)
        few, many = tag == 1, tag == 2
        eight = (size[few] * 2.0**code.narrow).to(torch.int32) | sign[few] << 7
        sixteen = (size[many] * 2.0**WIDE).to(torch.int32) | sign[many] << 15
        fields = [pack(tag, 2), pack(eight[None], 8), pack(sixteen[None], 16), row[tag == 3][None]]
        if code.relative:
            fields.insert(0, torch.tensor([[exponent]], dtype=torch.int8, device=row.device))
        encoded.append(wires.join(*fields)[0])
    return torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)


def add_tagged(wire: Tensor, out: Tensor, scale: float, code: TaggedCode) -> None:
    """float32 out ``[b, n]`` += scale times what a wire ``[b, w]`` of :func:`write_tagged` says.

    Raises:
        PayloadError: a length, exponent or number that no sender writes.
    """
    n = out.shape[1]
    head = [("exponent", torch.int8, int(code.relative)), ("tags", torch.uint8, packed_bytes(n, 2))]
    for part, row in zip(wire[:, None], out[:, None], strict=True):
        exponent, packed = wires.split(part, head, slack=True)
        tag = unpack(packed, 2, n)
        counts = [int((tag == kind).sum()) for kind in (1, 2, 3)]
        streams = [("bytes", torch.uint8, counts[0]), ("words", torch.uint8, 2 * counts[1])]
        *_, eight, words, raw = wires.split(part, [*head, *streams, ("raw", torch.float32, counts[2])], slack=True)
        if not bool(raw.isfinite().all()):
            raise PayloadError("field 'raw' must be finite")
        unit = int(exponent) if code.relative else 0
        if unit < -126:
            raise PayloadError(f"field 'exponent' must be in [-126, 127], got {unit}")
        value = torch.zeros_like(row)
        value[tag == 1] = _to_signed(eight.to(torch.int32), 7).mul_(2.0 ** (unit - code.narrow))
        value[tag == 2] = _to_signed(unpack(words, 16, counts[1]).to(torch.int32), 15).mul_(2.0 ** (unit - WIDE))
        value[tag == 3] = raw
        add_scaled_(row, value, scale)


def _exponent(row: Tensor) -> int:
    """ceil(log2 max|x|), between -126 and 127: larger numbers travel under tag 3, smaller ones lose bits."""
    mantissa, exponent = row.abs().amax().frexp()  # mantissa in [1/2, 1)
    return max(-126, min(127, int(exponent) - int(mantissa == 0.5)))


def _to_signed(code: Tensor, bits: int) -> Tensor:
    """Sign and magnitude ``[1, m]`` -> float32 ``[m]``."""
    size = (code & ((1 << bits) - 1)).float()
    return torch.where(code >> bits > 0, -size, size)[0]
