"""Law 5, exact recovery: inputs that a method says it recovers come back exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import grace
from grace.contract.method import Method
from grace.contract.wrapping import layers
from grace.registry import recipe_of
from grace.verify.exact import KINDS
from grace.verify.outcome import Held, Profile, no_promise
from grace.verify.running import average, run
from grace.verify.subject import Subject
from grace.verify.trials import make_workers, name_input

_WORLDS = (1, 2, 4)  # sums can be divided by these without rounding


def exact_recovery(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """These inputs come back: the mean is their average, to a rounding."""
    truth = average(xs)
    mean = run(method, xs)[0].mean.double()
    legal = 8 * torch.finfo(torch.float32).eps * float(truth.abs().max())
    if not isinstance(method, grace.PowerSGD):
        legal /= 8  # sums of few bits: at most one rounding
    error = float((mean - truth).abs().max())
    assert error <= legal, f"exact recovery: off by {error:.3g}, legal {legal:.3g}"


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    entry = recipe_of(type(layers(subject.method)[-1]))
    if entry is None or not entry.recovers:
        return no_promise("no input is declared to come back exactly")
    for kind, knobs in entry.recovers:
        method = grace.method(f"{entry.name}:{knobs}" if knobs else entry.name)
        for world in _WORLDS:
            name_input(kind, exact_recovery, method, make_workers(KINDS[kind], world))
    return Held("to a rounding: " + ", ".join(kind for kind, _ in entry.recovers))
