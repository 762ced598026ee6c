"""Training under a controller, over steps that are only simulated: with noise, stalls and neighbours."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from grace.auto.controller import Controller

Times = Callable[[int, int], float]  # seconds of a step under a plan
Noise = Callable[[random.Random, int], float]
SECOND = 1_000_000_000


def mild(rng: random.Random, step: int) -> float:
    return math.exp(rng.gauss(0, 0.08)) * (1 + (rng.random() < 0.03) * rng.expovariate(0.7))


def waves(rng: random.Random, step: int) -> float:
    """Another tenant comes and goes, in step with a block at times."""
    return math.exp(rng.gauss(0, 0.10)) * (1.4 if (step // 5) % 2 else 1.0) * (1.5 if (step // 137) % 3 == 0 else 1.0)


@dataclass
class Run:
    controller: Controller
    seconds: float
    baseline: float
    changes: list[tuple[int, int]]  # step, plan


def run(
    times: Times,
    plans: int,
    steps: int,
    seed: int,
    noise: Noise = mild,
    *,
    resolution: int = 1,
    share: float = 0.01,
    kind: type[Controller] = Controller,
) -> Run:
    """Training under a controller: plan 0 is the better baseline, and predictions are right at the step of each look."""

    def predict(step: int) -> list[int]:
        return [int(SECOND * times(plan, step)) for plan in range(plans)]

    predicted = predict(0)
    best = min(range(plans), key=lambda plan: predicted[plan])
    incumbent = best if predicted[best] < 0.97 * predicted[0] else 0
    controller = kind(
        predicted, incumbent, [plan for plan in range(plans) if plan != incumbent], baselines=1, seed=seed, share=share
    )
    rng, total, base, elapsed = random.Random(1000 + seed), 0.0, 0.0, 0
    changes = [(0, controller.current)]
    for step in range(steps):
        factor = noise(rng, step)
        seconds = times(controller.plan, step) * factor
        total, base, elapsed = total + seconds, base + times(0, step) * factor, elapsed + int(SECOND * seconds)
        record = controller.ended(int(SECOND * seconds) // resolution * resolution, elapsed)
        if record is None:
            continue
        controller.heard([record, record])
        if controller.current != changes[-1][1]:
            changes.append((step, controller.current))
        if controller.look is not None:
            now = predict(step)
            order = sorted(range(plans), key=lambda plan: now[plan])
            due = "time" in controller.look
            faster = now[order[0]] < 0.95 * now[controller.current]
            controller.looked(now, order if faster or not due else [], "the link has changed")
    return Run(controller, total, base, changes)
