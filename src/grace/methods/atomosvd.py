"""Spectral ATOMO: atomic sparsification of singular triples (Wang et al., NeurIPS 2018).

Letters: M is m x l: m the first dimension, l all others flattened; q = min(m, l) singular values; s the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.communicators import Allgather
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Positive
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.methods.common.matrices import DENSE, LowRank
from grace.methods.common.triples import Triples
from grace.registry import register


@register("atomosvd", family="low rank", aliases=("spectralatomo",), cases=["rank=2,min_rate=0.1"])
@dataclass(frozen=True, slots=True)
class AtomoSVD(LowRank[None]):
    """Spectral ATOMO: a few random singular triples of each worker's gradient, on average as many as the budget.

    ``C(M) = sum over kept i of (sigma_i / p_i) u_i v_i^T``; i is kept with probability p_i; the p_i sum to s, are
    proportional to sigma_i, and at most 1

    Args:
        rank: the budget s, the expected number of triples, >= 1.
        view: the matrix of a convolution's kernel a x b x c x d: "matrix" is a x bcd, "atomo" the authors' ab/2 x 2cd.
        min_rate: matrices with at most min_rate s (m + l) elements go uncompressed, > 0.
        shrink: multiply by 1/(1+omega), which makes it a contraction; a memory sets it.
    Wire:
        a count k (int32), k numbers sigma_i / (p_i sqrt(m l)), the k vectors u, the k vectors v (float32): 32 + 32 k (m
        + l + 1) bits, s triples on average. Data-dependent, so one more small round exchanges the sizes. Tensors of
        fewer than two dimensions go uncompressed.
    Bias:
        unbiased; omega = sum of sigma^2/p over |M|^2, minus 1: at most q/s - 1. Exact for rank s or less. With
        ``shrink``: biased, delta = 1/(1+omega) for the bound.
    Differs from the paper:
        where no triple is drawn, none is sent; the authors' code draws again, which is biased. The decomposition is exact.
    Example:
        >>> method("atomosvd:rank=2")
        AtomoSVD(rank=2, view='matrix', min_rate=2.0, shrink=False)

    Reference:
        Wang, Sievert, Liu, Charles, Papailiopoulos and Wright, "ATOMO: Communication-efficient Learning via Atomic
        Sparsification", NeurIPS 2018, arXiv 1806.04090.
    """

    rank: Count = 3
    view: Literal["matrix", "atomo"] = "matrix"
    min_rate: Positive = 2.0
    shrink: bool = False

    def with_memory(self) -> Method[Any]:
        return replace(self, shrink=True)

    def _sizes(self, like: Tensor) -> tuple[int, int, int]:
        m, l = like.shape[0], math.prod(like.shape[1:])
        if self.view == "atomo" and like.ndim == 4 and like.shape[0] * like.shape[1] % 2 == 0:
            m, l = like.shape[0] * like.shape[1] // 2, 2 * like.shape[2] * like.shape[3]
        return m, l, min(self.rank, m, l)

    def _inner(self, like: Tensor) -> Method[None]:
        if not self._compresses(like):
            return DENSE
        m, l, _ = self._sizes(like)
        return Allgather(Triples(m, l, self.rank, self.shrink))

    def exchange(self, x: Tensor, state: None, peer: Peer) -> Exchange[Exchanged[None]]:
        return (yield from self._inner(x).exchange(x, None, peer))

    def facts(self, like: Tensor) -> Facts:
        return self._inner(like).facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return self._inner(like).traffic(like, peer)
