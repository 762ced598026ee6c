"""ATOMO: atomic sparsification, entry-wise (Wang et al., NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from grace.contract.facts import Facts
from grace.contract.knobs import Range, Share, check_knobs
from grace.errors import ConfigurationError
from grace.kernels.index_codes.codes import IndexCode
from grace.kernels.sampling import Budgets
from grace.methods.common.sampled import Sampled
from grace.registry import register

_RATIO = 0.01  # by default


@register("atomo", communicator="allgather", family="low rank", cases=["ratio=0.3"])
@dataclass(frozen=True, slots=True)
class Atomo(Sampled):
    """Atomo, entry-wise: the unbiased sample of s numbers on average that has the least variance.

    ``C(x)_i = x_i / p_i with probability p_i, else 0``, with ``p_i = min(|x_i| / unit, 1)`` and ``sum of p_i = s``: the
    largest numbers, one after the other, are certain to be kept while their share of what is left of s reaches 1.

    Args:
        budget: s, how many numbers are kept on average, >= 1.
        ratio: s/n instead, in (0, 1]. Default 0.01.
        index: how indices travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
        shrink: multiply by 1/(1+omega), which makes it a contraction; a memory sets it.
    Wire:
        two counts (int32), k1 values with p = 1 (float32), 1/lambda (float32), k2 signs, then the ascending indices of
        both groups: 96 + 32 k1 + k2 + (k1 + k2) ceil(log2 n) bits with ``index="raw"``, E[k1 + k2] <= s; or all n values
        where that is expected to be smaller. One round, and a small one for the sizes.
    Bias:
        unbiased; omega = sum x^2/p / |x|^2 - 1 <= n/s - 1. With ``shrink``: biased, delta = 1/(1+omega). Exact for at
        most s non-zero numbers.
    Differs from the paper:
        nothing; the budget is at least 1, and 1/lambda is kept within the range of float32.
    Example:
        >>> method("atomo:ratio=0.05")
        Allgather(compressor=Atomo(budget=None, ratio=0.05, index='auto', shrink=False))

    Reference:
        Wang, Sievert, Liu, Charles, Papailiopoulos and Wright, "ATOMO: Communication-efficient Learning via Atomic
        Sparsification", NeurIPS 2018, arXiv 1806.04090, algorithm 1.
    """

    budget: Annotated[float, Range(least=1)] | None = None
    ratio: Share | None = None
    index: IndexCode = "auto"
    shrink: bool = False

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.budget is not None and self.ratio is not None:
            raise ConfigurationError(f"atomo: give budget={self.budget} or ratio={self.ratio}, not both")
        if self.ratio == _RATIO:  # one method has one spelling
            object.__setattr__(self, "ratio", None)

    @property
    def _rule(self) -> Budgets:
        return Budgets(self.budget, _RATIO if self.ratio is None else self.ratio, self.shrink)

    def facts(self, n: int) -> Facts:
        if self.shrink:
            return Facts(contraction=self._rule.factor(n), deterministic=False)
        return Facts(unbiased=True, variance=n / self._rule.count(n) - 1, deterministic=False)
