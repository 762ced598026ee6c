"""Top-k, from "Sparse Communication for Distributed Gradient Descent" (Aji and Heafield, EMNLP 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from grace.contract.compressor import Fused
from grace.contract.facts import Facts
from grace.contract.knobs import Share
from grace.kernels.index_codes.codes import IndexCode, varies
from grace.kernels.index_codes.variable import GapPairs, choose_listed_many
from grace.kernels.selection import take_topk_many
from grace.kernels.sparse import Pairs, TopKPairs, encode_topk_many, payloads, sum_topk_many
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse import Chosen
from grace.methods.common.counts import contraction, count_kept
from grace.random import Stream
from grace.registry import register


@register(
    "topk",
    communicator="allgather",
    memory="residual",
    family="sparsification",
    cases=["ratio=0.2", "ratio=1", "ratio=0.001,index=raw", "ratio=0.1,index=rice", "ratio=0.3,values=bfloat16"],
    recovers={"sparse": "ratio=0.03,memory=none"},
)
@dataclass(frozen=True, slots=True)
class TopK(Fused):
    """Top-k: only the k numbers of largest magnitude.

    ``C(x)_i = x_i if i is among the k largest |x_i|, else 0``, with ``k = max(1, ceil(ratio n))``

    Args:
        ratio: share of the elements that is kept, in (0, 1].
        index: how indices travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
        values: how values travel: float32, or bfloat16, rounded to nearest.
    Wire:
        k values, then their indices in ascending order: k (32 + ceil(log2 n)) bits with ``index="raw"``; at a ratio
        of 1 %, k (32 + 8.6) with auto. Fixed but for delta and rice, which need one more small round. One round.
    Bias:
        biased; delta = k/n, times 1 - 2**-18 with bfloat16 (magnitudes of at least 2**-126). Exact for at most k
        non-zero numbers.
    Differs from the paper:
        the paper estimates the threshold on a sample; this selection is exact, and the first of equal magnitudes wins.
    Example:
        >>> method("topk:ratio=0.001")
        ErrorFeedback(method=Allgather(compressor=TopK(ratio=0.001, index='auto', values='float32')),
                      beta=1.0, gamma=1.0)

    Reference:
        Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017, arXiv 1704.05021; with
        memory: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599.
    """

    handles_many: ClassVar[bool] = True
    ratio: Share = 0.01
    index: IndexCode = "auto"
    values: payloads.ValueType = "float32"

    @property
    def varies(self) -> bool:  # type: ignore[override]  # here it depends on a knob
        return varies(self.index)

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        return payloads.write_topk_(rows, self._kept(rows.shape[1]), memory, rest)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        payloads.sum_pairs(received, out, self._kept(out.shape[1]), scale, add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_topk_many(message, many, self._pairs(many))

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_topk_many(rows, many, self._pairs(many), scale)

    @property
    def counted(self) -> GapPairs | None:
        return GapPairs(self.index, partial(count_kept, self.ratio), self.values == "bfloat16") if self.varies else None

    def choose_many_(self, many: TensorList, rng: Stream, code: GapPairs) -> Chosen:
        lists = code.lists(many.sizes)
        K = sum(lists.kept)
        index, sent = many.table.new_empty(K), torch.empty(K, device=many.device, dtype=torch.float32)
        finite = take_topk_many(index, sent, many, lists.kept, narrow=code.narrow)
        fields = (sent.to(torch.bfloat16) if code.narrow else sent).view(torch.uint8)
        return choose_listed_many(index, fields, finite, many, lists)

    def _kept(self, n: int) -> TopKPairs:
        """The pairs in the wire of n numbers."""
        return TopKPairs(count_kept(self.ratio, n), self.index, self.values == "bfloat16")

    def _pairs(self, many: TensorList) -> Pairs:
        """The pairs in the wires of a bucket's tensors."""

        def make() -> Pairs:
            return payloads.pairs_of(many.sizes, partial(count_kept, self.ratio), self.index, self.values)

        return many.once(self, make)

    def facts(self, n: int) -> Facts:
        pairs = self._kept(n)
        return Facts(contraction=contraction(pairs.k / n, self.values), payload=payloads.pairs_bytes(n, pairs))
