"""The update that the contributions of several learners make.

Letters: Δ_m is learner m's pseudo-gradient, w_m its weight, Θ the parameters, b the outer momentum, η the outer learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def weigh(work: Sequence[tuple[int, int]]) -> list[float]:
    """Weights w_m, which add up to 1, of learners that have made (tokens, steps) since they got the fragment: tokens times
    tokens per step, that is quantity times quality; equal ones if nobody has made any.

    Example:
        >>> weigh([(6, 3), (2, 1)])
        [0.75, 0.25]
    """
    products = [tokens * tokens / steps if steps else 0.0 for tokens, steps in work]
    total = math.fsum(products)
    return [product / total for product in products] if total > 0 else [1 / len(work)] * len(work)


def merge(
    deltas: Sequence[Sequence[Tensor]], weights: Sequence[float], plain: Sequence[bool], radial: bool
) -> list[Tensor]:
    """Δ of a fragment from each learner's: for each parameter ``[n]`` float32.

    deltas: for each learner, for each parameter. plain: for each parameter, whether it is averaged as Σ w_m Δ_m. radial: the
    others, as one vector, are averaged in norm and direction apart:

    ``Δ = (Σ w_m |Δ_m|) · unit(Σ w_m Δ_m/|Δ_m|)``

    since a mean of M nearly orthogonal vectors would be √M times too short (Douillard et al., 2026).

    Example:
        >>> merge([[torch.tensor([3.0, 0.0])], [torch.tensor([0.0, 4.0])]], [0.5, 0.5], [False], True)
        [tensor([2.4749, 2.4749])]
    """
    norms = [_norm([x for x, flat in zip(delta, plain, strict=True) if not flat]) for delta in deltas]
    if not radial or not any(norms):
        return _sum(deltas, weights)
    units = [w / norm if norm else 0.0 for w, norm in zip(weights, norms, strict=True)]
    out = []
    for place, flat in enumerate(plain):
        column = [[delta[place]] for delta in deltas]
        out += _sum(column, weights if flat else units)
    length = _norm([x for x, flat in zip(out, plain, strict=True) if not flat])
    mean = math.fsum(w * norm for w, norm in zip(weights, norms, strict=True))
    for x, flat in zip(out, plain, strict=True):
        if not flat:
            x.mul_(mean / length if length else 0.0)
    return out


def _sum(deltas: Sequence[Sequence[Tensor]], weights: Sequence[float]) -> list[Tensor]:
    out = [torch.zeros_like(x) for x in deltas[0]]
    for delta, w in zip(deltas, weights, strict=True):
        for total, x in zip(out, delta, strict=True):
            total.add_(x * w)
    return out


def _norm(tensors: Sequence[Tensor]) -> float:
    """The Euclidean norm of tensors of any shapes, as one vector."""
    return math.sqrt(math.fsum(float(x.double().square().sum()) for x in tensors))


def outer_step_(
    parameters: Sequence[Tensor], momenta: Sequence[Tensor], delta: Sequence[Tensor], lr: float, momentum: float
) -> None:
    """SGD with Nesterov momentum, in place, each ``[n]`` float32: ``b = μ b + Δ;  Θ -= η (Δ + μ b)``."""
    for theta, b, d in zip(parameters, momenta, delta, strict=True):
        b.mul_(momentum).add_(d)
        theta.add_(d.add(b, alpha=momentum), alpha=-lr)
