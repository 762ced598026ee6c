"""Law 7, randomness: no global generator; the same seed gives the same bits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace.contract.method import Method
from grace.verify.inputs import UGLY
from grace.verify.outcome import Held, Profile
from grace.verify.running import run, same_bits
from grace.verify.subject import Subject
from grace.verify.trials import SHAPE, make_some, make_workers


def own_randomness(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """The global generators are untouched; the same seed gives the same bits; if random, other seeds give other bits."""
    before = torch.get_rng_state(), _read_numpy_state(), random.getstate()
    first = run(method, xs, seed=3)[0].mean
    after = torch.get_rng_state(), _read_numpy_state(), random.getstate()
    assert torch.equal(before[0], after[0]), "randomness: torch's generator was used"
    assert before[1] == after[1], "randomness: numpy's generator was used"
    assert before[2] == after[2], "randomness: python's generator was used"
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    random.seed(99)
    assert same_bits(first, run(method, xs, seed=3)[0].mean), "randomness: the same seed gives other bits"
    others = (run(method, xs, seed=seed)[0].mean for seed in (4, 5, 6))
    facts = method.facts(xs[0])
    if facts.deterministic:
        assert all(same_bits(first, other) for other in others), (
            "randomness: it depends on the seed, but is declared deterministic"
        )
    elif xs[0].numel() >= 64 and bool(xs[0].any()) and facts.variance != 0:
        assert not all(same_bits(first, other) for other in others), (
            "randomness: it is declared random, but no seed changes it"
        )


def _read_numpy_state() -> tuple[bytes, int]:
    _, words, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
    return np.asarray(words).tobytes(), int(position)


def ranks_draw_apart(method: Method[Any], x: Tensor) -> None:
    """Rounding is independent between ranks: averaging over workers reduces the error."""
    one, many = run(method, [x]), run(method, [x] * 8)
    alone, averaged = ((out[0].mean - x).double().square().sum() for out in (one, many))
    assert float(averaged) <= 0.5 * float(alone), f"randomness: 8 ranks err by {averaged:.3g}, one by {alone:.3g}"


def check(one: Subject, profile: Profile) -> Held:
    """What the report says about it."""
    for method in one.all:
        for xs in (make_some(one), make_workers(UGLY["zeros"], max(2, one.least_world))):
            own_randomness(method, xs)
    said = one.core.facts(torch.empty(SHAPE, device="meta", dtype=torch.float32)).deterministic
    return Held("as declared; global generators untouched", "deterministic" if said else "random")
