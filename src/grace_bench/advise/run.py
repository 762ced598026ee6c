"""Measures, and advises."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from grace.errors import out_of_range
from grace.registry import method as make_method
from grace_bench import machine
from grace_bench.advise.advice import Advice, candidates, rank
from grace_bench.advise.costs import MOST_WORKERS, Cost, Step
from grace_bench.advise.echo import Replayer
from grace_bench.advise.subject import Subject, usual_readiness
from grace_bench.network.links import Link


def advise(
    subject: Subject,
    links: Sequence[Link],
    workers: Sequence[int],
    *,
    methods: Sequence[str] | None = None,
    step_ms: float | None = None,
    cores: float = 1.0,
    samples: int = 5,
    patience: float = 10.0,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Advice, Callable[[str, Link, int], float]]:
    """The advice, and a function (method, link, workers) -> seconds of a step, for figures.

    Args:
        subject: the model.
        links: there is a table for each link and number of workers.
        workers: 2 to 1,024.
        methods: None: one good composition of each method of the survey.
        step_ms: a step without communication on ``cores`` cores; None: measured here.
        cores: of each worker, > 0.
        samples: exchanges that are timed of each method.
        patience: seconds that one may take.
        tell: is told what is being measured.

    Raises:
        ConfigurationError, UnknownNameError: a method that cannot be, or a number out of range.
    """
    for world in workers:
        if not 2 <= world <= MOST_WORKERS:
            raise out_of_range("advise", "workers", world, f"2 to {MOST_WORKERS:,}")
    if step_ms is not None and not 0 < step_ms < 1e7:
        raise out_of_range("advise", "step_ms", step_ms, "milliseconds > 0")
    if not 0 < cores <= 1024:
        raise out_of_range("advise", "cores", cores, "> 0")
    names = candidates(methods)
    for name in names:
        make_method(name)
    load = machine.load()
    threads = max(1, int(cores))
    if step_ms is None:
        tell("a step without communication")
        seconds, ready = subject.compute(threads)
    else:
        seconds, ready = step_ms / 1000, usual_readiness(subject.numbers)
    replayer = Replayer(subject.shapes, subject.buckets, samples, patience)
    costs = {name: Cost(functools.partial(replayer.run, name)) for name in names}
    for name, cost in costs.items():
        tell(name)
        for world in workers:
            cost.at(world)
    total = sum(subject.numbers)
    step = Step(seconds, ready, subject.numbers, cores, replayer.add_seconds / total)
    tables = [rank(step, costs, link, world) for world in workers for link in links]
    advice = Advice(
        model=subject.name, parameters=total, buckets=list(subject.numbers), step_ms=1000 * seconds,
        measured=step_ms is None, cores=cores, ready=list(ready), add_ns=1e9 * step.add,
        busy=machine.is_busy(load, machine.cores()), load=load, tables=tables,
    )  # fmt: skip
    return advice, lambda name, link, world: costs[name].seconds(step, link, world)
