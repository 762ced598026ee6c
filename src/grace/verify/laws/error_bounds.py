"""Law 4, declared facts: the bounds on the error."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

import grace
from grace.contract.method import Method
from grace.verify.laws.bias import draw_means
from grace.verify.outcome import Held, Profile, no_promise
from grace.verify.running import TINY, same_bits
from grace.verify.subject import Subject
from grace.verify.trials import make_spread, name_input


def bounds(method: Method[Any], x: Tensor, draws: int = 100) -> float:
    """The declared contraction and variance hold for one worker, and the method is deterministic if it says so.

    Returns:
        E|C(x) - x|^2 / |x|^2 as measured: omega of an unbiased method, 1 - delta of a contraction.
    """
    facts = method.facts(x)
    outs = draw_means(method, [x], draws if not facts.deterministic else 2)
    if facts.deterministic:
        assert same_bits(outs[0], outs[1]), "deterministic: another seed gives other bits"
    errors = (outs - x.double()).square().flatten(1).sum(1)  # [R]
    size = float(x.double().square().sum())
    errors_hold(errors, size, facts)
    return float(errors.mean()) / size if size else 0.0


def errors_hold(errors: Tensor, size: float, facts: grace.Facts) -> None:
    """The declared contraction and variance hold for the squared errors ``[R]`` of R draws, of an x of ``size`` = |x|^2."""
    delta = facts.contraction or 0.0
    spread = 0.0
    if not facts.deterministic:  # a number in [0, |x|^2] of mean (1 - delta) |x|^2 varies no more than a coin
        spread = max(float(errors.std()), size * math.sqrt(delta * (1 - delta))) / math.sqrt(len(errors))
    measured = float(errors.mean()) - 5 * spread
    slack = size * 1e-10 + TINY
    if facts.contraction is not None:
        legal = (1 - facts.contraction) * size * (1 + 1e-5) + slack
        assert measured <= legal, (
            f"contraction: E|x - C(x)|^2 = {measured:.6g} > (1 - {facts.contraction}) |x|^2 = {legal:.6g}"
        )
    if facts.variance is not None:
        legal = facts.variance * size * (1 + 1e-5) + slack
        assert measured <= legal, f"variance: E|C(x) - x|^2 = {measured:.6g} > {facts.variance} |x|^2 = {legal:.6g}"


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    if subject.least_world > 1:
        return no_promise("measured with one worker, and this needs more")
    errors = _bounds(subject, profile)
    worst = max(errors, key=lambda name: errors[name][0])
    gauss, facts = errors["Gaussian"]
    numbers: dict[str, Any] = {"gaussian": gauss, "worst": errors[worst][0], "worst_input": worst}
    numbers |= {"contraction": facts.contraction, "variance": facts.variance}
    measured = f"{gauss:.3g} of |x|^2 for Gaussian x; worst: {errors[worst][0]:.3g} ({worst})"
    claims = spell_claims(facts)
    return Held(measured, claims or "no bound", "holds" if claims else "not promised", "", numbers)


def _bounds(subject: Subject, profile: Profile) -> dict[str, tuple[float, grace.Facts]]:
    """The error |C(x) - x|^2 / |x|^2 for each input, and what is declared for it."""
    return {
        name: (name_input(name, bounds, subject.core, x, profile.draws // 2), subject.core.facts(x))
        for name, x in make_spread().items()
    }


def spell_claims(facts: grace.Facts) -> str:
    """The declared bounds, in words; empty if there are none."""
    claims = []
    if facts.contraction is not None:
        claims.append(f"delta {facts.contraction:.4g}: at most {1 - facts.contraction:.4g}")
    if facts.variance is not None:
        claims.append(f"omega {facts.variance:.4g}")
    return "; ".join(claims)
