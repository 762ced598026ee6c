"""Signum: signSGD with momentum (Bernstein et al., ICML 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from grace.methods.signsgd import SignSGD
from grace.registry import register


@register(
    "signum", communicator="allgather", memory="momentum", family="quantization", cases=["", "zero=abstain,beta=0.5"]
)
@dataclass(frozen=True, slots=True)
class Signum(SignSGD):
    """SIGNUM: the majority vote of the signs of each worker's momentum.

    ``m = beta m + (1 - beta) g;  sgn(sum over workers of sgn(m_w))``: -1, 0 or 1; a tie is 0

    Args:
        zero: how a zero votes, as in signsgd.
        beta: decay of the momentum, in [0, 1); a knob of the memory. Default 0.9.
    Wire:
        n bits (abstain: 1.6 n), one round.
    Bias:
        biased, neither scaled nor averaged: the step size is the optimizer's, about 1e-4. No delta; error feedback is
        refused.
    Differs from the paper:
        zeros, as in signsgd. The optimizer must have no momentum of its own; weight decay belongs to its update.
    Example:
        >>> method("signum:beta=0.99")
        Momentum(method=Allgather(compressor=Signum(zero='parity')), beta=0.99)

    Reference:
        Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018, arXiv 1802.04434,
        section 3; majority vote: Bernstein et al., ICLR 2019, arXiv 1810.05291.
    """
