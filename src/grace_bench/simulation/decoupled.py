"""Learners that are killed and come back, some of them slow: synchronous, elastic and decoupled training, in virtual time.

All train the same model on the same data for the same time, with the same deaths. Goodput is the share of all workers' time
that went into steps that count, at each one's own speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
from torch import Tensor

from grace.contract.knobs import Count, Positive, Range, Steps, check_knobs, name_owner
from grace.decoupled.plan import Plan
from grace.decoupled.settings import SyncerSettings
from grace.decoupled.syncer import Syncer
from grace.errors import out_of_range
from grace_bench.simulation.problem import DigitsProblem
from grace_bench.simulation.run import MOST, Tell
from grace_bench.simulation.virtual import Process, World

_KEEP = 10  # steps from one checkpoint of a worker to the next
_REGROUP = 2.0  # steps' time that elastic training stops for when workers come or go


@dataclass(frozen=True, slots=True)
class DecoupledSetting:
    """The setting of a simulation of learners.

    workers: M. steps: that one makes in the time of the simulation, undisturbed and at full speed. step_time: seconds. slow:
    share of the workers that take twice as long; spread: standard deviation of the logarithm of the others' times. kill_every:
    seconds from one death to the next, 0: nobody dies; repair: seconds until the dead one is back; victims: how many of the
    workers die, in turn, 0: all. every, fragments, overlap, quorum, outer_momentum, down: of the learners
    and their syncer; few merges need less momentum than many. latency: seconds, one way. rate: bytes a
    second of each worker's link. alpha, batch, hidden, lr, seed: of the problem.

    Raises:
        ConfigurationError: a value out of range.
    """

    workers: Annotated[int, Range(1, MOST)] = 8
    steps: Count = 200
    step_time: Positive = 1.0
    slow: Annotated[float, Range(0, 1)] = 0.0
    spread: Annotated[float, Range(0, 2)] = 0.0
    kill_every: Annotated[float, Range(0)] = 0.0
    repair: Positive = 5.0
    victims: Steps = 0
    every: Count = 10
    fragments: Count = 2
    overlap: Steps = 2
    quorum: Count = 1
    outer_momentum: float = 0.5
    down: str | None = None
    latency: Annotated[float, Range(0)] = 0.05
    rate: Positive = 1e6
    alpha: float = 1.0
    batch: Count = 8
    hidden: Count = 128
    lr: Positive = 0.2
    seed: Steps = 0

    def __post_init__(self) -> None:
        check_knobs(replace(self, alpha=1.0) if self.alpha == math.inf else self)
        if not self.alpha > 0:
            raise out_of_range("simulate", "alpha", self.alpha, "> 0, inf: all workers alike")
        if self.victims > self.workers:
            raise out_of_range("simulate", "victims", self.victims, f"0 to workers={self.workers}")
        SyncerSettings(self.workers, self.quorum, momentum=self.outer_momentum)

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.steps * self.step_time

    def seconds(self) -> list[float]:
        """The seconds of a step, of each worker."""
        random = np.random.default_rng((self.seed, 2))
        slow = round(self.slow * self.workers)
        times = self.step_time * np.exp(self.spread * random.standard_normal(self.workers))
        return [2 * self.step_time if i >= self.workers - slow else float(x) for i, x in enumerate(times)]

    def deaths(self) -> list[tuple[float, int]]:
        """Deaths, as pairs of time and worker: in turn, none that is dead."""
        if not self.kill_every:
            return []
        victims = self.victims or self.workers
        times = np.arange(self.kill_every, self.duration, self.kill_every)
        free, out = [0.0] * victims, []
        for number, time in enumerate(times.tolist()):
            worker = number % victims
            if time >= free[worker]:
                out.append((time, worker))
                free[worker] = time + self.repair
        return out


name_owner(DecoupledSetting, "simulate")


def simulate_decoupled(setting: DecoupledSetting, methods: Sequence[str], tell: Tell) -> dict[str, Any]:
    """The document: the setting, and a row for each kind of training.

    A row has the loss and accuracy on the test set at the end, the goodput, ``survivors``: the share of their time that the
    workers which never die have trained; ``stopped``: seconds in which nobody trained; bytes that all have sent; and of
    decoupled training how many merges there were, and the norm of what was written off. The first row is of decoupled training
    in which nobody is slow or dies. A goodput of 0 is no progress: somebody died in each step, and the loss is that of the
    model at the start.
    """
    problem = DigitsProblem(setting.alpha, setting.batch, setting.hidden, setting.seed)
    for method in methods:  # all of them before anything takes a minute
        _plan(setting, problem, method)
    undisturbed = replace(setting, kill_every=0.0, slow=0.0)
    rows = [_train_decoupled(undisturbed, problem, methods[0], "decoupled, undisturbed", tell)]
    rows += [_train_together(setting, problem, kind, tell) for kind in ("synchronous", "elastic")]
    rows += [_train_decoupled(setting, problem, method, "decoupled", tell) for method in methods]
    about = {**asdict(setting), "alpha": None if math.isinf(setting.alpha) else setting.alpha}
    return {"schema": "grace-simulate-decoupled/1", "setting": about, "rows": rows}


# ---- learners -------------------------------------------------------------------------------------------------------
def _train_decoupled(
    setting: DecoupledSetting, problem: DigitsProblem, method: str, kind: str, tell: Tell
) -> dict[str, Any]:
    settings = SyncerSettings(setting.workers, setting.quorum, momentum=setting.outer_momentum)
    world = World(Syncer(settings, "simulation"), setting.latency, setting.rate)
    plan = _plan(setting, problem, method)

    def train(process: Process) -> None:
        number = int(process.name[1:])
        gradients = problem.gradients(process.parameters, [number], process.steps + 1)
        for name, p in process.parameters.items():
            p.sub_(setting.lr * gradients[name][0])

    seconds = setting.seconds()
    for number, each in enumerate(seconds):
        Process(
            world,
            f"l{number}",
            problem.model,
            train,
            seconds=each,
            plan=plan,
            tokens=setting.batch,
            keep_every=_KEEP,
            patience=30.0,
        )
    processes = list(world.processes.values())
    for time, worker in setting.deaths():
        world.at(time, processes[worker].kill)
        world.at(time + setting.repair, processes[worker].start)
    for tenth in range(1, 11):
        world.run(setting.duration * tenth / 10)
        tell(f"{kind}, {method}", tenth, 10)
    stats = world.syncer.stats
    loss, accuracy = problem.evaluate(world.syncer.parameters)
    fine = math.isfinite(loss)
    return {
        "kind": kind, "method": method, "loss": loss if fine else None, "accuracy": accuracy if fine else None,
        "goodput": math.fsum(p.trained for p in processes) / (setting.duration * setting.workers),
        "survivors": _survivors(setting, [p.trained for p in processes]), "stopped": 0.0,
        "sent": stats.bytes_up + stats.bytes_down, "merges": stats.merges, "written_off": stats.written_off_debt,
    }  # fmt: skip


def _plan(setting: DecoupledSetting, problem: DigitsProblem, method: str) -> Plan:
    return Plan.of(
        problem.model(), every=setting.every, fragments=setting.fragments, overlap=setting.overlap, up=method,
        down=setting.down, seed=setting.seed,
    )  # fmt: skip


def _survivors(setting: DecoupledSetting, trained: Sequence[float]) -> float | None:
    """The share of their time that those who never die have trained."""
    dead = {worker for _, worker in setting.deaths()}
    alive = [min(1.0, each / setting.duration) for worker, each in enumerate(trained) if worker not in dead]
    return math.fsum(alive) / len(alive) if alive else None


# ---- all at once ----------------------------------------------------------------------------------------------------
def _train_together(setting: DecoupledSetting, problem: DigitsProblem, kind: str, tell: Tell) -> dict[str, Any]:
    """Data-parallel training: a step takes as long as the slowest of those who are there, and an all-reduce.

    Synchronous: whoever dies is waited for, and all go on from the last checkpoint. Elastic: the others go on from where they
    are, after a stop to form a group without it; and again, with it, when it is back.
    """
    seconds, deaths = setting.seconds(), setting.deaths()
    model, bytes_of_model = problem.model(), 4 * sum(p.numel() for p in problem.model().values())
    kept, made, kept_made = _copy(model), 0, 0
    trained, kept_trained = [0.0] * setting.workers, [0.0] * setting.workers
    away: dict[int, float] = {}
    now = stopped = sent = 0.0
    limit = setting.duration
    while True:
        here = [worker for worker in range(setting.workers) if worker not in away]
        share = 2 * (len(here) - 1) / len(here) if here else 0.0
        takes = max((seconds[w] for w in here), default=0.0)
        takes += share * bytes_of_model / setting.rate + 2 * setting.latency * (len(here) > 1)
        back = min(away.values(), default=math.inf)
        ends = now + takes
        if not here:
            stopped, now = stopped + back - now, back
            away = {worker: time for worker, time in away.items() if time > now}
        elif deaths and deaths[0][0] <= ends:
            time, worker = deaths.pop(0)
            begins, now = now, max(now, time)
            away[worker] = now + setting.repair
            stop = (
                setting.repair + _REGROUP * setting.step_time if kind == "synchronous" else _REGROUP * setting.step_time
            )
            if kind == "synchronous":
                model, made, trained = _copy(kept), kept_made, list(kept_trained)
                away.clear()
            stopped, now = stopped + now - begins + stop, now + stop
        elif back <= ends:
            now, stopped = max(now, back) + _REGROUP * setting.step_time, stopped + _REGROUP * setting.step_time
            away = {worker: time for worker, time in away.items() if time > now}
        else:
            now = ends
            if now > limit:
                break
            made += 1
            gradients = problem.gradients(model, here, made)
            for name, p in model.items():
                p.sub_(setting.lr * gradients[name].mean(0))
            for worker in here:
                trained[worker] += seconds[worker]
            sent += share * bytes_of_model * len(here)
            if made % _KEEP == 0:
                kept, kept_made, kept_trained = _copy(model), made, list(trained)
                tell(kind, min(10, int(10 * now / limit)), 10)
        if now > limit:  # in a stop
            stopped -= now - limit
            break
    tell(kind, 10, 10)
    loss, accuracy = problem.evaluate(model)
    return {
        "kind": kind, "method": "none", "loss": loss, "accuracy": accuracy,
        "goodput": math.fsum(trained) / (limit * setting.workers), "survivors": _survivors(setting, trained),
        "stopped": stopped, "sent": sent, "merges": None, "written_off": None,
    }  # fmt: skip


def _copy(model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: p.clone() for name, p in model.items()}
