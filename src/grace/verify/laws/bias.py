"""Law 4, declared facts: unbiased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.verify import measure
from grace.verify.inputs import normal
from grace.verify.outcome import Held, Profile, no_promise
from grace.verify.running import average, run
from grace.verify.subject import Subject
from grace.verify.trials import SHAPE

BIASED = 1e-4  # a p-value below it is a bias
_SUSPICIOUS = 1e-3  # a p-value below it is measured again, with more draws


def draw_means(method: Method[Any], xs: Sequence[Tensor], draws: int, seed: int = 1) -> Tensor:
    """``[R, *x.shape]`` float64: the mean of a first step, for R seeds."""
    return torch.stack([run(method, xs, seed=seed + r)[0].mean.double() for r in range(draws)])


def unbiased(method: Method[Any], xs: Sequence[Tensor], draws: int = 200) -> None:
    """If the method is declared unbiased, E mean = the average of x."""
    if not method.facts(xs[0]).unbiased:
        return
    truth = average(xs)
    outs = draw_means(method, xs, draws)
    bias = (outs.mean(0) - truth).flatten()
    variance = (outs - truth).square().mean(0).flatten()  # [n]
    largest = float(torch.stack([x.abs().max() for x in xs]).double().max())
    floor = ((method.facts(xs[0]).bias + 2.0**-21) * largest) ** 2  # what is declared, and a rounding of float32
    legal = 6 * ((variance.clamp_min(float(variance.mean())) + floor) / draws + floor).sqrt()
    worst = int((bias.abs() - legal).argmax())
    assert bool((bias.abs() <= legal).all()), (
        f"unbiased: element {worst} is off by {float(bias[worst]):.3g} on average, legal {float(legal[worst]):.3g}"
    )
    total, expected = float(bias.square().sum()), float(variance.sum()) / draws + bias.numel() * floor
    assert total <= 5 * expected, f"unbiased: |E mean - x|^2 = {total:.3g}, expected {expected:.3g}"


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    if subject.least_world > 1:
        return no_promise("measured with one worker, and this needs more")
    chances = []
    unbiased = subject.core.facts(torch.empty(SHAPE, device="meta", dtype=torch.float32)).unbiased
    for x in (normal(*SHAPE)(0), -normal(*SHAPE)(1).abs()):
        draws = 2 if subject.core.facts(x).deterministic else profile.draws
        outs = draw_means(subject.core, [x], draws)
        p = measure.bias_p_value(outs, x)
        if unbiased and p < _SUSPICIOUS and draws > 2:  # chance rarely does this: measure again
            p = measure.bias_p_value(draw_means(subject.core, [x], 4 * draws, seed=10_001), x)
        chances.append(p)
    p = min(1.0, len(chances) * min(chances))
    words = f"{'biased' if p < BIASED else 'no bias found'}, p {_spell_p(p)}"
    declared = "unbiased" if unbiased else "biased"
    if unbiased and p < BIASED:
        raise AssertionError(f"unbiased: it is declared, but E C(x) differs from x, p {_spell_p(p)}")
    if not unbiased:
        return no_promise("", words, declared, p_value=p)
    return Held(words, declared, numbers={"p_value": p})


def _spell_p(p: float) -> str:
    return "< 1e-12" if p < 1e-12 else f"= {p:.2g}"
