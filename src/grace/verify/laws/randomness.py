"""Law 7, randomness: no global generator; the same seed gives the same bits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace.communicators import Allgather
from grace.contract.method import Method
from grace.contract.wrapping import find_compressor
from grace.verify.inputs import UGLY, normal
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


def independence(method: Method[Any], x: Tensor, draws: int = 16, world: int = 8) -> float | None:
    """Independence where randomness is declared private: of workers that hold the same x, the mean's variance over seeds is
    1/W of that of one worker: (the former over the latter) W, 1 if they are independent and W if they draw the same; None: not
    declared.

    A communicator that compresses the mean once more rounds that alone, so its compressor is tried in an Allgather.
    """
    compressor = find_compressor(method)
    core = method if compressor is None else Allgather(compressor)
    facts = core.facts(x)
    if facts.deterministic or facts.randomness == "shared":
        return None
    single, many = (_measure_variance(core, [x] * count, draws) for count in (1, world))
    ratio = world * many / max(single, 1e-300)
    assert ratio <= 2, (
        f"independence: randomness is declared private, but the mean of {world} workers varies {ratio:.3g} / {world} times as "
        "much as one worker's, not 1 / W: they draw the same numbers"
    )
    return ratio


def _measure_variance(method: Method[Any], xs: Sequence[Tensor], draws: int) -> float:
    """The variance of all numbers of the mean over seeds, added up."""
    means = [run(method, xs, seed=1000 * len(xs) + seed)[0].mean for seed in range(draws)]
    return float(torch.stack(means).double().var(0).sum())


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    for method in subject.all:
        for xs in (make_some(subject), make_workers(UGLY["zeros"], max(2, subject.least_world))):
            own_randomness(method, xs)
    facts = subject.core.facts(torch.empty(SHAPE, device="meta", dtype=torch.float32))
    declared = "deterministic" if facts.deterministic else f"random, {facts.randomness}"
    words = "as declared; global generators untouched"
    ratio = independence(subject.core, normal(*SHAPE)(0)) if subject.least_world == 1 else None
    if ratio is not None:
        words += f"; the mean of 8 equal gradients varies {ratio / 8:.2g} times as much as one"
    return Held(words, declared)
