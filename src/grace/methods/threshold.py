"""Threshold-v, from "On the Discrepancy" (Dutta et al., AAAI 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grace.contract.compressor import Fused
from grace.contract.facts import Facts
from grace.contract.knobs import Positive
from grace.kernels import (
    Chosen,
    CountedCode,
    TensorList,
    choose_reaching_many,
    root_mean_square,
    root_mean_square_many,
)
from grace.kernels.index_codes.codes import IndexCode
from grace.kernels.sparse import payloads
from grace.random import Stream
from grace.registry import register


@register(
    "threshold",
    communicator="allgather",
    memory="residual",
    family="sparsification",
    cases=["v=0.5", "v=1e-6", "v=1e6", "v=1.5,relative=true"],
    recovers={"sparse": "v=0.5,memory=none"},
)
@dataclass(frozen=True, slots=True)
class Threshold(Fused):
    """Threshold-v: only the numbers whose magnitude exceeds v.

    ``C(x)_i = x_i if |x_i| > v, else 0``; with ``relative``, v is in units of the root mean square of x

    Args:
        v: the threshold, > 0; in gradient units, or times the root mean square of x.
        relative: whether v is relative.
        index: how indices travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
        values: how values travel: float32, or bfloat16, rounded to nearest.
    Wire:
        a count (int32), the kept values, then their ascending indices: 32 + nnz (32 + ceil(log2 n)) bits with
        ``index="raw"``, less with the others; or -1 and all n values where that is smaller. Data-dependent, so one more
        small round exchanges the sizes of all tensors of a bucket.
    Bias:
        biased; every dropped number is at most v, so |x - C(x)|^2 <= (n - nnz) v^2; no uniform delta.
    Differs from the paper:
        ``relative`` is new: no absolute v suits every model.
    Example:
        >>> method("threshold:v=3,relative=true")
        ErrorFeedback(method=Allgather(compressor=Threshold(v=3, relative=True, index='auto', values='float32')),
                      beta=1.0, gamma=1.0)

    Reference:
        Dutta et al., "On the Discrepancy between the Theoretical Analysis and Practical Implementations of Compressed
        Communication for Distributed Deep Learning", AAAI 2020, arXiv 1911.08250.
    """

    varies: ClassVar[bool] = True
    v: Positive = 0.01
    relative: bool = False
    index: IndexCode = "auto"
    values: payloads.ValueType = "float32"

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        bounds = [self.v] * len(rows)
        if self.relative:
            of = [root_mean_square(row, None if memory is None else memory[j]) for j, row in enumerate(rows)]
            bounds = [self.v * rms for rms in of]
        return payloads.write_at_least_(rows, bounds, self.index, self.values, memory, rest, strict=True)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        payloads.sum_counted(received, out, scale, self.index, self.values, add=add)

    @property
    def counted(self) -> CountedCode:
        return CountedCode(self.index, self.values == "bfloat16")

    def choose_many_(self, many: TensorList, rng: Stream, code: CountedCode) -> Chosen:
        bounds = many.numbers((Threshold, self.v), lambda: [self.v] * len(many), torch.float64)
        if self.relative:
            bounds = root_mean_square_many(bounds, many) * self.v
        return choose_reaching_many(bounds, many, code, strict=True)

    def facts(self, n: int) -> Facts:
        return Facts()
