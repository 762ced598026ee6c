"""A simulation: who is there in each step, and what each method makes of the same steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from grace.contract.knobs import Count, Positive, Range, check_knobs, name_owner
from grace.errors import out_of_range
from grace.run.simulator import Simulator
from grace_bench.simulation.problem import DigitsProblem

MOST = 1024
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting of a simulation.

    workers: at any time, 1 to 1,024. part: of them take part in a step, drawn at random. late: of these are late, as a share:
    the step takes place without them, and their gradients are added to what they owe. churn: probability that a worker goes
    in a step; a new one comes for it. hands_over: whether a worker that goes hands over what it owes; else that is lost.
    alpha, batch, hidden: see :class:`grace_bench.simulation.problem.DigitsProblem`. steps, lr, seed: of SGD without momentum.
    evaluations: points of the curve.

    Raises:
        ConfigurationError: a value out of range.
    """

    workers: Annotated[int, Range(1, MOST)] = MOST
    part: int = 32
    steps: Count = 200
    churn: Annotated[float, Range(0, below=1)] = 0.0
    late: Annotated[float, Range(0, below=1)] = 0.0
    hands_over: bool = False
    alpha: float = 1.0
    batch: Count = 8
    hidden: Count = 128
    lr: Positive = 0.2
    seed: int = 0
    evaluations: Count = 20

    def __post_init__(self) -> None:
        check_knobs(dataclasses.replace(self, alpha=1.0) if self.alpha == math.inf else self)
        if not self.alpha > 0:
            raise out_of_range("simulate", "alpha", self.alpha, "> 0, inf: all workers alike")
        if not 1 <= self.part <= self.workers:
            raise out_of_range("simulate", "part", self.part, "1 to workers")


name_owner(Setting, "simulate")


@dataclass(frozen=True, slots=True)
class Attendance:
    """Attendance of workers. gone: places of workers that go before it, each as the list is then; a new one comes for each, at
    the end of the list. present, late: places in the list after that.
    """

    gone: list[int]
    present: list[int]
    late: list[int]


def plan(setting: Setting) -> Iterator[Attendance]:
    """The steps: the same for each method."""
    random = np.random.default_rng((setting.seed, 1))
    for _ in range(setting.steps):
        going = int(random.binomial(setting.workers, setting.churn)) if setting.churn else 0
        gone = [int(random.integers(setting.workers - k)) for k in range(min(going, setting.workers - 1))]
        drawn = random.choice(setting.workers, setting.part, replace=False)
        late = int(setting.late * setting.part)
        yield Attendance(gone, sorted(map(int, drawn[late:])), sorted(map(int, drawn[:late])))


def simulate(setting: Setting, methods: Sequence[str], tell: Tell) -> dict[str, Any]:
    """The document: the setting, and a row for each method.

    A row has the curve (``sent``: bytes that all workers have sent so far; ``loss`` and ``accuracy`` on the test set), where
    it ends, the bytes of one worker in one step, how many workers were lost, and as norms what they owed, what is owed at the
    end, and what was applied, all in units of the mean gradient. ``diverged``: the first step after which the loss was not
    finite, or None.
    """
    problem = DigitsProblem(setting.alpha, setting.batch, setting.hidden, setting.seed)
    rows = [_run(setting, problem, method, tell) for method in methods]
    about = {**asdict(setting), "alpha": None if math.isinf(setting.alpha) else setting.alpha}
    return {"schema": "grace-simulate/1", "setting": about, "methods": rows}


def _run(setting: Setting, problem: DigitsProblem, method: str, tell: Tell) -> dict[str, Any]:
    sim, model = Simulator(method, setting.workers, seed=setting.seed), problem.model()
    names, born = list(range(setting.workers)), setting.workers
    applied = {name: torch.zeros_like(p) for name, p in model.items()}
    lost = {name: torch.zeros_like(p) for name, p in model.items()}
    marks = {round(setting.steps * k / setting.evaluations) for k in range(1, setting.evaluations + 1)}
    sent, exchanges, left, diverged = 0, 0, 0, None
    curve: dict[str, list[Any]] = {"step": [], "sent": [], "loss": [], "accuracy": []}

    def mark(step: int) -> bool:
        loss, accuracy = problem.evaluate(model)
        fine = math.isfinite(loss)
        for key, value in zip(curve, (step, sent, loss if fine else None, accuracy if fine else None), strict=True):
            curve[key].append(value)
        return fine

    mark(0)
    for number, step in enumerate(plan(setting), 1):
        for place in step.gone:
            del names[place]
            left += 1
            if setting.hands_over:
                sim.leave(place)
            else:
                for name, x in sim.lose(place).items():
                    lost[name] += x
        while sim.world < setting.workers:
            sim.join()
            names.append(born)
            born += 1
        gradients = problem.gradients(model, [names[i] for i in (*step.present, *step.late)], number)
        before = sum(sim.traffic_of(i).sent for i in step.present)
        here = len(step.present)
        means = sim.step({name: list(x[:here]) for name, x in gradients.items()}, lr=setting.lr, present=step.present)
        for k, i in enumerate(step.late, here):
            sim.late(i, {name: x[k] for name, x in gradients.items()})
        sent += sum(sim.traffic_of(i).sent for i in step.present) - before
        exchanges += here
        for name, mean in means.items():
            applied[name] += mean
            model[name] -= setting.lr * mean
        tell(method, number, setting.steps)
        if number in marks and not mark(number):
            diverged = number
            break
    debts = sim.debts()
    return {
        "method": method, "loss": curve["loss"][-1], "accuracy": curve["accuracy"][-1], "sent": sent,
        "bytes_per_worker_step": sent / max(1, exchanges), "left": left, "lost": _norm(lost), "owed": _norm(debts),
        "applied": _norm(applied), "diverged": diverged, "curve": curve,
    }  # fmt: skip


def _norm(tensors: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(x.double().square().sum()) for x in tensors.values()))
