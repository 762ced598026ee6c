"""Measures, and advises."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from grace.compute import resources
from grace.errors import ConfigurationError, out_of_range
from grace.predict.costs import MOST_WORKERS, REPLAYED, Cost, Step
from grace.predict.links import Link
from grace.predict.replay import Replayer
from grace.predict.timeline import Host, usual_readiness
from grace.registry import method as make_method
from grace.registry.policy import Policy
from grace_bench import machine
from grace_bench.advise.advice import BASELINES, Advice, against_baselines, candidates, rank
from grace_bench.advise.gpu import GPUReplayer, of_document, of_machine
from grace_bench.advise.loops import cost_of
from grace_bench.advise.subject import AdvisedModel
from grace_bench.devices import CodecTimes
from grace_bench.runs.algorithms import find_algorithm

# Times what a step of the better of fp32 and bf16 leaves of the processor: a codec that takes more cannot pay.
_FAR = 2.0
_BUDGET = 0.4  # seconds: a method that has been timed at all, for every number of workers, is then timed no more
_SHORT = 0.25  # seconds: the first exchange of a method also allocates its memory


def advise(
    subject: AdvisedModel,
    links: Sequence[Link],
    workers: Sequence[int],
    *,
    methods: Sequence[str] | None = None,
    exactly: bool = False,
    step_ms: float | None = None,
    cores: float = 1.0,
    samples: int = 5,
    patience: float = 10.0,
    device: str = "cpu",
    codecs: CodecTimes | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Advice, Callable[[str, Link, int], float]]:
    """The advice, and a function (method, link, workers) -> seconds of a step, for figures.

    Args:
        subject: the model.
        links: there is a table for each link and number of workers.
        workers: 2 to 1,024.
        methods: and algorithms, such as "diloco:every=32" or "onebitadam"; None: every registered method. Methods are composed
            alike, see :func:`grace_bench.advise.advice.compose`.
        exactly: whether they are tried as they are written instead.
        step_ms: a step without communication on ``cores`` cores; None: measured here.
        cores: of each worker, > 0.
        samples: exchanges that are timed of each method, at most.
        patience: seconds that one may take. What takes far more of the processor than steps of fp32 and bf16 leave, on all
            links, is not measured to its end.
        device: cpu, or cuda: what codecs run on. A step is not measured there, but given.
        codecs: what a document of ``grace bench codecs --device cuda`` says, not a GPU here; it has the methods.
        tell: is told what is being measured, and how many methods there are.

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
    gpu: GPUReplayer | None = None
    if device != "cpu" or codecs is not None:
        gpu, methods = _on_gpu(subject, workers, methods, step_ms, samples, device, codecs)
        exactly, cores = exactly or codecs is not None, 1.0
    names = candidates(methods, max(workers), exactly=exactly)
    for name in names:
        if gpu is not None and find_algorithm(name) is not None:
            raise ConfigurationError(f"advise: {name} is an algorithm, and on a GPU a prediction knows methods only")
        if find_algorithm(name) is None and any(make_method(name).axes(world) for world in workers):
            raise ConfigurationError(
                f"advise: {name} goes inside machines and between them, and a prediction knows one kind of link; leave "
                "machine= out, and give as many --workers as there are machines"
            )
    load = machine.load()
    threads = max(1, int(cores))
    if step_ms is None:
        tell("a step without communication")
        seconds, ready = subject.compute(threads)
    else:
        seconds, ready = step_ms / 1000, usual_readiness(subject.numbers)
    replays = len(REPLAYED) if max(workers) > REPLAYED[-1] else len(set(workers))
    replayer = Replayer(subject.shapes, subject.buckets, samples, patience, _BUDGET / replays) if gpu is None else gpu
    if isinstance(replayer, Replayer):
        make = functools.partial(_cost_here, replayer)
        costs = {name: cost_of(name, make, replayer) for name in names}
    else:
        costs = {name: Cost(functools.partial(replayer.run, name)) for name in names}
    total = sum(subject.numbers)

    def step_here() -> Step:
        add = replayer.add_seconds / total
        return Step(seconds, ready, subject.numbers, cores, add, host=None if gpu is None else Host())

    for place, (name, cost) in enumerate(costs.items(), start=1):
        tell(f"{place} of {len(names)}: {name}")
        for world in workers:
            cost.at(world)
        if name == list(BASELINES)[-1]:
            here = step_here()
            slowest = max(against_baselines(here, costs, world)(link) for world in workers for link in links)
            left = min(slowest, slowest * cores - here.compute)  # processor seconds of one thread, beside computing
            replayer.patience = min(patience, max(_SHORT, _FAR * left))
    step = step_here()
    tables = [rank(step, costs, link, world) for world in workers for link in links]
    advice = Advice(
        model=subject.name, parameters=total, buckets=list(subject.numbers), step_ms=1000 * seconds,
        measured=step_ms is None, cores=cores, ready=list(ready), add_ns=1e9 * step.add,
        busy=machine.is_busy(load, resources.cores()), load=load, tables=tables,
        device="cpu" if gpu is None else gpu.device, note="" if gpu is None else gpu.told,
    )  # fmt: skip
    return advice, lambda name, link, world: costs[name].seconds(step, step.over(link), world)


def _cost_here(replayer: Replayer, method: Policy | str) -> Cost:
    return Cost(functools.partial(replayer.run, method))


def _on_gpu(
    subject: AdvisedModel, workers: Sequence[int], methods: Sequence[str] | None, step_ms: float | None, samples: int,
    device: str, codecs: CodecTimes | None,
) -> tuple[GPUReplayer, Sequence[str] | None]:  # fmt: skip
    """The replays on a GPU, and the methods that are asked about."""
    if device == "cpu":
        raise ConfigurationError("advise: --codecs is of a GPU; legal: with --device cuda")
    if codecs is None:
        gpu = of_machine(subject.shapes, subject.buckets, device, samples)
    else:
        gpu, known = of_document(subject.shapes, subject.buckets, codecs, workers), list(codecs.times)
        missing = [name for name in methods or () if name not in (*BASELINES, *known)]
        if missing:
            raise ConfigurationError(
                f"advise: {codecs.path} has not measured {', '.join(missing)}; legal: {', '.join(known)}"
            )
        methods = known if methods is None else methods
    if step_ms is None:
        raise ConfigurationError(
            "advise: --device cuda needs --step-ms, milliseconds of a step without communication on that GPU: no step is "
            "measured there"
        )
    return gpu, methods
