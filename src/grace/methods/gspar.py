"""GSpar: gradient sparsification for communication-efficient optimization (Wangni et al., NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from grace.contract.facts import Facts
from grace.contract.knobs import Positive, Share, Steps, check_knobs
from grace.errors import ConfigurationError
from grace.kernels.index_codes.codes import IndexCode
from grace.kernels.sampling import Chances
from grace.methods.common.sampled import Sampled
from grace.registry import register

_RATIO = 0.01  # by default


@register("gspar", communicator="allgather", family="sparsification", cases=["ratio=0.3", "ratio=0.2,index=rice"])
@dataclass(frozen=True, slots=True)
class GSpar(Sampled):
    """GSpar: keeps numbers at random, large ones more often, and makes up for the others.

    ``C(x)_i = x_i / p_i with probability p_i, else 0``, with ``p_i = min(lambda |x_i|, 1)``: x_i itself where p_i = 1,
    and sgn(x_i) / lambda elsewhere. lambda makes the expected count ``max(1, ratio n)``, or the variance epsilon |x|^2.

    Args:
        ratio: share of the elements that is kept on average, in (0, 1]. Default 0.01.
        epsilon: the variance in units of |x|^2, > 0, instead of ``ratio``.
        rounds: how often lambda is raised to make up for what p <= 1 cuts off, >= 0. Not used with epsilon.
        index: how indices travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
        shrink: multiply by 1/(1+omega), which makes it a contraction; a memory sets it.
    Wire:
        two counts (int32), 1/lambda (float32), k1 values with p = 1 (float32), k2 signs, then the ascending indices of
        both groups: 96 + 32 k1 + k2 + (k1 + k2) ceil(log2 n) bits with ``index="raw"``, E[k1 + k2] <= ratio n; or all n
        values where that is expected to be smaller. One round, and a small one for the sizes.
    Bias:
        unbiased; omega = sum x^2/p / |x|^2 - 1 <= n / max(1, ratio n), or epsilon. With ``shrink``: biased,
        delta = 1/(1+omega). Exact for at most ratio n non-zero numbers.
    Differs from the paper:
        4 rounds instead of 2. 1/lambda is kept within the range of float32, which costs count, not bias.
    Example:
        >>> method("gspar:ratio=0.05,index=rice")
        Allgather(compressor=GSpar(ratio=0.05, epsilon=None, rounds=4, index='rice', shrink=False))

    Reference:
        Wangni, Wang, Liu and Zhang, "Gradient Sparsification for Communication-Efficient Distributed Optimization",
        NeurIPS 2018, arXiv 1710.09854, algorithms 2 and 3.
    """

    ratio: Share | None = None
    epsilon: Positive | None = None
    rounds: Steps = 4
    index: IndexCode = "auto"
    shrink: bool = False

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.ratio is not None and self.epsilon is not None:
            raise ConfigurationError(f"gspar: give ratio={self.ratio} or epsilon={self.epsilon}, not both")
        if self.ratio == _RATIO:  # one method has one spelling
            object.__setattr__(self, "ratio", None)

    @property
    def _rule(self) -> Chances:
        return Chances(_RATIO if self.ratio is None else self.ratio, self.epsilon, self.rounds, self.shrink)

    def facts(self, n: int) -> Facts:
        if self.shrink:
            return Facts(contraction=self._rule.factor(n), deterministic=False)
        return Facts(unbiased=True, variance=self._rule.omega(n), deterministic=False)
