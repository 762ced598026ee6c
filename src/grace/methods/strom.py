"""Strom's threshold quantization, from "Scalable Distributed DNN Training" (Strom, Interspeech 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Positive, Range
from grace.kernels import Chosen, CountedCode, TensorList, choose_coded_many, root_mean_square, root_mean_square_many
from grace.kernels.index_codes.codes import IndexCode, pad
from grace.kernels.sparse_codes import Quanta
from grace.kernels.sparse_codes.wire import add_coded_, write_coded_
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

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        encoded = []
        for row in rows:  # [n]
            tau = self._quantum(row)  # [1]
            encoded.append(
                write_coded_(row, tau, float(tau), self._codes, self.index, strict=True, keep_rest=keep_rest)
            )
        return pad(encoded)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        for part, row in zip(wire[:, None], out, strict=True):  # [1, w], [n]
            add_coded_(part, row, scale, self._codes, self.index)

    @property
    def counted(self) -> CountedCode:
        return CountedCode(self.index, False, self._codes)

    def choose_many_(self, many: TensorList, rng: Stream, code: CountedCode) -> Chosen:
        if self.relative:
            rms = root_mean_square_many(many.like, many)
            tau = _quanta_of(rms.masked_fill(~rms.isfinite(), 0.0) * self.tau)  # of what is not finite zeros are sent
        else:
            tau = many.numbers((Strom, self.tau), lambda: [self.tau] * len(many), torch.float32)
        return choose_coded_many(tau.view(torch.int32), tau.double(), many, code, strict=True)

    @property
    def _codes(self) -> Quanta:
        return Quanta(self.quanta)

    def _quantum(self, row: Tensor) -> Tensor:
        """The quantum t as float32 ``[1]``."""
        if not self.relative:
            return row.new_tensor([self.tau])
        return _quanta_of(row.new_tensor([root_mean_square(row) * self.tau], dtype=torch.float64))

    def facts(self, n: int) -> Facts:
        return Facts(contraction=0.0)


def _quanta_of(tau: Tensor) -> Tensor:
    """float64, of any shape, as float32, at most the largest one."""
    return tau.clamp_max(torch.finfo(torch.float32).max).float()
