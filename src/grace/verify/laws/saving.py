"""Law 8, state survives: saved, loaded and continued, a run has the same bits as without the stop."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import grace
from grace.contract.method import Method
from grace.run import Simulator
from grace.verify.inputs import normal
from grace.verify.outcome import Held, Profile
from grace.verify.running import LR, STEPS_PER_EPOCH, same_bits
from grace.verify.subject import Subject
from grace.verify.trials import make_workers


def state_survives(method: Method[Any], steps: Sequence[Sequence[Tensor]], stop: int) -> None:
    """Saving, loading and going on gives the same bits as a run without the stop."""
    W, like = len(steps[0]), {"w": steps[0][0]}
    policy = grace.Policy([("*", method)])

    def go(sim: Simulator, some: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        return [sim.step({"w": list(xs)}, lr=LR)["w"] for xs in some]

    def fresh(seed: int = 0) -> Simulator:
        return Simulator(policy, W, seed=seed, steps_per_epoch=STEPS_PER_EPOCH)

    through = go(fresh(5), steps)
    first = fresh(5)
    go(first, steps[:stop])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    go(first, steps[stop:])  # what was saved must not be a view of the live state
    file.seek(0)
    second = fresh()
    second.load_state_dict(torch.load(file, weights_only=True), like)
    for i, (a, b) in enumerate(zip(through[stop:], go(second, steps[stop:]), strict=True)):
        assert same_bits(a, b), f"state: step {stop + i} after loading differs from the run without a stop"


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    steps = [make_workers(normal(12, 8, seed=t), max(2, subject.least_world)) for t in range(4)]
    for method in subject.all:
        state_survives(method, steps, stop=2)
    return Held("bit for bit, saved after 2 of 4 steps")
