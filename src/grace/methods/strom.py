"""Strom's threshold quantization, from "Scalable Distributed DNN Training" (Strom, Interspeech 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Positive, Range
from grace.errors import PayloadError
from grace.kernels.index_lists.codes import IndexCode, pad
from grace.kernels.places import add_at_
from grace.methods.common import coded_wire
from grace.random import Stream
from grace.registry import register


@register("strom", communicator="allgather", memory="residual", family="hybrid", cases=["tau=0.3,relative=false", ""])
@dataclass(frozen=True, slots=True)
class Strom(Compressor):
    """A fixed threshold, and one quantum for whatever exceeds it: only places and signs travel.

    ``C(x)_i = t sgn(x_i) if |x_i| > t, else 0``. The recipe's memory "residual" is part of the method: what was not
    sent stays there, and is sent one quantum per step

    Args:
        tau: t, > 0 and finite: in units of the root mean square of x, or of the gradient.
        relative: whether tau is in units of the root mean square of what is compressed.
        quanta: the most quanta of an element that are sent per step, floor(|x|/t) where that is less; 1 to 65536.
        index: how indices travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
    Wire:
        a count (int32), t (float32), then for each number sent a sign bit (and ceil(log2 quanta) bits) and its index:
        64 + k (1 + ceil(log2 n)) bits with ``index="raw"``. Data-dependent: one more small round exchanges the sizes
        of all tensors of a bucket.
    Bias:
        biased; |x - C(x)| <= |x| in each element and no more: delta = 0, but what stays is at most t where
        |x| <= (quanta + 1) t.
    Differs from the paper:
        workers average, the paper sums; packed lists instead of 32-bit words of index and sign. ``relative`` and
        ``quanta`` are new: no absolute t suits every model, and elements far above t would drain slowly.
    Example:
        >>> method("strom:tau=0.001,relative=false").method
        Allgather(compressor=Strom(tau=0.001, relative=False, quanta=1, index='auto'))

    Reference:
        Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015.
    """

    varies: ClassVar[bool] = True
    tau: Positive = 2.0
    relative: bool = True
    quanta: Annotated[int, Range(1, 1 << 16)] = 1
    index: IndexCode = "auto"

    @property
    def code_bits(self) -> int:
        """One bit for the sign, the others for the number of quanta less one."""
        return 1 + (self.quanta - 1).bit_length()

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        encoded = []
        for row in rows:  # [n]
            tau = self._quantum(row)  # [1]
            size = row.abs()
            index = ((size > tau) & (tau > 0)).nonzero()[:, 0]  # [k]
            size, positive = size[index], row[index] > 0
            level = (size / tau).floor_().clamp_(1, self.quanta)
            level = level.sub_((level * tau > size).float()).clamp_(min=1)  # a quotient that was rounded up
            codes = positive | ((level.long() - 1) << 1)
            encoded.append(coded_wire.join(tau, index, codes, self.code_bits, row.numel(), self.index))
            if keep_rest:
                row[index] -= torch.where(positive, level * tau, -level * tau)
        return pad(encoded)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        for one, row in zip(wire[:, None], out, strict=True):  # [1, w], [n]
            head = ("tau", torch.float32, 1)
            tau, index, codes = coded_wire.split(one, head, self.code_bits, row.numel(), self.index)
            level = (codes >> 1) + 1
            value = wires.check_scale("tau", tau) * level
            if bool((level > self.quanta).any()) or not bool(value.isfinite().all()):
                raise PayloadError(f"field 'codes' must be at most {self.quanta} quanta, and finite times tau")
            add_at_(row, 0, index, torch.where(codes & 1 == 1, value, -value) * scale)

    def _quantum(self, row: Tensor) -> Tensor:
        """The quantum t as float32 ``[1]``."""
        if not self.relative:
            return row.new_tensor([self.tau])
        rms = row.double().square().mean(dim=0, keepdim=True).sqrt_()
        return rms.mul_(self.tau).clamp_max_(torch.finfo(torch.float32).max).float()

    def facts(self, n: int) -> Facts:
        return Facts(contraction=0.0)
