"""Numbers as codes of a few bits, behind one number of their row, the front, that all of them are relative to.

``wire`` writes and reads them with the list of their places; here is what a code stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.kernels.packing import packed_bytes
from grace.kernels.statistics import block_sum

BIAS = 127  # of an exponent on the wire: 1 to 254 for 2**-126 to 2**127
SPAN = 7  # powers of two below the largest that can be sent


@dataclass(frozen=True)
class Quanta:
    """Multiples of the front, t > 0: code c is ``(c >> 1) + 1`` of them, 1 to ``most``, positive if its lowest bit is set."""

    most: int
    kind: ClassVar[int] = 1  # for kernels
    field: ClassVar[tuple[str, torch.dtype, int]] = ("tau", torch.float32, 1)

    @property
    def bits(self) -> int:
        """Bits of a code: one for the sign, the others for the number of quanta less one."""
        return 1 + (self.most - 1).bit_length()

    def front(self, word: Tensor) -> Tensor:
        """float32 ``[1]`` of its bits, int32."""
        return word.view(torch.float32)

    def encode(self, numbers: Tensor, front: Tensor) -> Tensor:
        """int64 ``[k]``: the codes of ``numbers [k]`` that exceed ``front [1]``; none of them stands for more than its
        number.
        """
        size = numbers.abs()
        level = (size / front).floor_().clamp_(1, self.most)
        level = level.sub_((level * front > size).float()).clamp_(min=1)  # a quotient that was rounded up
        return (numbers > 0) | ((level.long() - 1) << 1)

    def decode(self, codes: Tensor, front: Tensor) -> Tensor:
        """float32 ``[k]``: the numbers that ``codes [k]`` stand for.

        Raises:
            PayloadError: a front or a code that no sender writes.
        """
        level = (codes >> 1) + 1
        value = wires.check_scale("tau", front) * level
        if bool((level > self.most).any()) or not bool(value.isfinite().all()):
            raise PayloadError(f"field 'codes' must be at most {self.most} quanta, and finite times tau")
        return torch.where(codes & 1 == 1, value, -value)


@dataclass(frozen=True)
class Powers:
    """The nearest powers of two, at most that of the largest magnitude, whose exponent the front is: code c is ``c & 7``
    powers below it, negative with 8. A front of 0 is that of numbers below 2**-126, of which none is sent.
    """

    most: int = SPAN
    kind: ClassVar[int] = 2
    field: ClassVar[tuple[str, torch.dtype, int]] = ("exponent", torch.uint8, 1)
    bits: ClassVar[int] = 4

    def front(self, word: Tensor) -> Tensor:
        """uint8 ``[1]``, of int32."""
        return word.byte()

    def encode(self, numbers: Tensor, front: Tensor) -> Tensor:
        """int32 ``[k]``: the codes of ``numbers [k]``, not 0, of which none is more than 7 powers below ``front [1]``."""
        mantissa, exponent = numbers.abs().frexp()  # [0.5, 1) 2**exponent
        largest = int(front) - BIAS
        below = largest - (exponent - (mantissa < 0.75).to(exponent.dtype)).clamp_(max=largest)
        return below | ((numbers < 0) << 3)

    def decode(self, codes: Tensor, front: Tensor) -> Tensor:
        """As :meth:`Quanta.decode`, float32 ``[k]``.

        Raises:
            PayloadError: likewise.
        """
        if int(front) > 2 * BIAS:
            raise PayloadError(f"field 'exponent' must be at most {2 * BIAS}, got {int(front)}")
        powers = [2.0 ** (int(front) - BIAS - below) for below in range(SPAN + 1)]
        size = torch.tensor(powers, dtype=torch.float32, device=codes.device)[codes & SPAN]
        return torch.where(codes >> 3 == 1, -size, size)


@dataclass(frozen=True)
class SideMeans:
    """The mean of the positive numbers, code 1, and that of the negative ones, code 0: the front is the first, and the second
    without its sign.
    """

    most: int = 1
    kind: ClassVar[int] = 3
    field: ClassVar[tuple[str, torch.dtype, int]] = ("means", torch.float32, 2)
    bits: ClassVar[int] = 1

    def front(self, word: Tensor) -> Tensor:
        """float32 ``[2]`` of their bits, int64 ``[1]``."""
        return word.view(torch.float32)

    def front_of(self, numbers: Tensor) -> Tensor:
        """float32 ``[2]``: the means of ``numbers [k]``, of which those of the other side count as zeros in sums in the order
        of :func:`grace.kernels.statistics.block_sum`; 0 of nothing.
        """
        k, total = numbers.numel(), numbers.new_zeros(2, dtype=torch.float64)
        if k:
            parts = torch.stack((numbers.clamp(min=0), numbers.clamp(max=0)))
            counts = torch.stack(((numbers > 0).sum(), (numbers < 0).sum()))
            total = block_sum(parts, k)[:, 0] / counts.clamp_min_(1)
        return torch.stack((total[0], -total[1])).float()

    def encode(self, numbers: Tensor, front: Tensor) -> Tensor:
        """Bool ``[k]``: the codes of ``numbers [k]``."""
        return numbers > 0

    def decode(self, codes: Tensor, front: Tensor) -> Tensor:
        """As :meth:`Quanta.decode`, float32 ``[k]``.

        Raises:
            PayloadError: a front that no sender writes.
        """
        means = wires.check_scale("means", front)
        return torch.where(codes.bool(), means[0], -means[1])


Codes: TypeAlias = Quanta | Powers | SideMeans


def coded_bytes(codes: Codes, k: int) -> int:
    """Bytes of a front and k codes."""
    _name, dtype, count = codes.field
    return count * dtype.itemsize + packed_bytes(k, codes.bits)


@dataclass(frozen=True)
class Payload:
    """The coded numbers of several rows, as they travel. narrow: the nearest bfloat16 of each. codes: these, behind
    ``fronts [T]`` int32, the bits of a float32 or an exponent, or int64, those of two float32.
    """

    narrow: bool
    codes: Codes | None = None
    fronts: Tensor | None = None

    def room(self, count: int, device: torch.device) -> Tensor:
        """For what is sent of so many numbers: float32, or codes."""
        return torch.empty(count, dtype=torch.float32 if self.codes is None else torch.int32, device=device)
