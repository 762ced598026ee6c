"""Methods that ``auto`` may use, by its goal and by one rule from the survey's runs.

Goal ``steps``, after as many steps not worse:

- ``exact``: sums of what the workers have computed, rounded at most: ``none`` and ``bf16``.
- ``safe``: and what on two tasks or more, with three seeds or more each, was never measured to end worse than uncompressed
  training by more than 2 % with intervals that do not touch, nor to diverge.
- a number: the same with another share of uncompressed training's quality.

Goal ``time``, bf16's quality soonest: what on two tasks or more, with three seeds or more each, reached bf16's quality; it
counts by the upper end of the multiple of bf16's steps that it took, on the task where that was largest.

What nobody measured is in none of them. ``frontier.json`` beside this file is the rule applied to the archives of this
repository: ``python -m docs.survey.findings`` writes it, and a test compares.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch

from grace.contract.peer import Peer
from grace.errors import ConfigurationError, InputError
from grace.predict.ways import TO_ALL, Way
from grace.registry import method as make_method
from grace.registry import parse, recipe, spell
from grace.run.optimizer import Settings, find_faults

Named: TypeAlias = Literal["exact", "safe"]
QUALITIES: tuple[Named, ...] = get_args(Named)
Quality: TypeAlias = Named | float
Goal: TypeAlias = Literal["steps", "time"]
GOALS: tuple[Goal, ...] = get_args(Goal)
EXACT = ("none", "bf16")  # fp32 and bf16, which are also what everything is compared with
SAFE = 0.02  # share of uncompressed training's quality that may be lost
LOOSE = 0.25  # the same where error= bounds what a method loses of each gradient
NAMES = {"none": "fp32", "bf16": "bf16"}
SCHEMA, VERSION = "grace.frontier", 1
PATH = Path(__file__).with_name("frontier.json")
_SHAPE = 1024, 1024  # of the matrix whose bytes are compared


@dataclass(frozen=True, slots=True)
class StepsMultiple:
    """Steps to bf16's quality as a multiple of bf16's own, on the task where it is largest.

    median, low, high: over seeds. task: where. matched: whether runs ended short of it, and bf16 of other lengths told.
    """

    median: float
    low: float
    high: float
    task: str
    matched: bool = False

    def __str__(self) -> str:
        how = ", matched with shorter runs of bf16" if self.matched else ""
        return f"{self.median:.3g} times bf16's steps ({self.low:.3g} to {self.high:.3g}) on {self.task}{how}"


@dataclass(frozen=True, slots=True)
class Known:
    """The survey's findings about a method.

    Attributes:
        limit: the least share of uncompressed training's quality whose rule it keeps; None: it keeps none, or on too few runs.
        loss: the largest share of uncompressed training's quality that it lost, of the tasks that count; None: it diverged.
        task: where. tasks, runs: on how many it was run, and how often.
        steps: to bf16's quality; None: it did not reach it, or there are too few runs.
    """

    limit: float | None
    loss: float | None
    task: str
    tasks: int
    runs: int
    steps: StepsMultiple | None = None

    def __str__(self) -> str:
        """On how little it rests."""
        if self.loss is None:
            return f"diverged on {self.task} ({self.tasks} tasks, {self.runs} runs)"
        lost = f"{self.loss:.1%} below fp32" if self.loss > 0 else "not below fp32"
        return f"at worst {lost} on {self.task} ({self.tasks} tasks, {self.runs} runs)"


@dataclass(frozen=True)
class Frontier:
    """The survey's findings in this package. workers, toolkits: that the runs had. sources: archives: file, runs, digest."""

    methods: Mapping[str, Known]
    workers: tuple[int, ...]
    toolkits: tuple[str, ...]
    sources: tuple[Mapping[str, Any], ...] = field(default=())


def read_frontier(path: Path = PATH) -> Frontier:
    """The findings in a file.

    Raises:
        InputError: it is cut, of another version, or something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if (document["schema"], document["version"]) != (SCHEMA, VERSION):
            raise ValueError(f"{document['schema']!r}, version {document['version']!r}; legal: {SCHEMA!r}, {VERSION}")
        methods = {name: _read_known(of) for name, of in document["methods"].items()}
        return Frontier(methods, tuple(document["workers"]), tuple(document["toolkits"]), tuple(document["sources"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no frontier of the survey ({type(error).__name__}: {error}); install Grace again, or in a "
            "checkout run python -m docs.survey.findings"
        ) from error


def _read_known(of: Mapping[str, Any]) -> Known:
    steps = of["steps"]
    return Known(**{**of, "steps": None if steps is None else StepsMultiple(**steps)})


@functools.cache
def frontier() -> Frontier:
    """The survey's findings."""
    return read_frontier()


def known() -> Mapping[str, Known]:
    """The survey's findings, by method with all knobs."""
    return frontier().methods


def extrapolates(workers: int, beyond: Sequence[str] = ()) -> tuple[str, ...]:
    """Ways in which a run differs from those that the findings rest on, in words. ``beyond``: those that its site knows."""
    measured = frontier().workers
    others = [f"{workers} workers"] if workers not in measured else []
    return tuple(
        f"measured with {' or '.join(map(str, measured))} workers and gradients of {' or '.join(frontier().toolkits)}; "
        f"taken to hold for {what}"
        for what in (*others, *beyond)
    )


def evidence_of(name: str) -> str:
    """On what it rests that a method may be used, in words."""
    if name in EXACT:
        return "the sum itself" if name == "none" else "the sum, rounded to bf16"
    evidence = known().get(spell(make_method(name)))
    return "nobody measured it" if evidence is None else str(evidence)


def steps_of(name: str) -> str:
    """The steps that a method takes to bf16's quality, in words."""
    if name in EXACT:
        return "1 times bf16's steps"
    evidence = known().get(spell(make_method(name)))
    return "not known" if evidence is None or evidence.steps is None else str(evidence.steps)


def factor_of(name: str) -> float | None:
    """Times bf16's steps that a method takes to bf16's quality at most, 1 or more; None: nobody knows."""
    if name in EXACT:
        return 1.0
    evidence = known().get(spell(make_method(name)))
    return None if evidence is None or evidence.steps is None else max(1.0, evidence.steps.high)


def permitted(
    quality: Quality,
    world: int,
    optimizer: Settings | None = None,
    chosen: Sequence[str] | None = None,
    *,
    memoryless: bool = False,
    way: Way = TO_ALL,
    goal: Goal = "steps",
) -> tuple[list[str], dict[str, str]]:
    """The methods of a class, fp32 and bf16 first and the others by what they send; and what is left out, and why.

    Args:
        quality: the class, under the goal "steps".
        world: workers; what sends no less than bf16 among so many is left out.
        optimizer: its settings, where they are known: what needs others is left out. Where they are not, what needs anything.
        chosen: only these, and fp32 and bf16, each over scatter-reduce as well, where that sends less and no communicator is
            named; they need not be in the class.
        memoryless: whether to leave out what has a memory.
        way: how tensors are exchanged; what cannot do that is left out.
        goal: see above. Under "time" what nobody knows the steps of is left out.

    Raises:
        ConfigurationError: one of ``chosen`` is no method.
    """
    names = _of_class(quality, goal) if chosen is None else beside_scattered(chosen, world, way)
    dense = _sent("bf16", world, way)
    sizes: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name in names:
        if name in EXACT:
            continue
        why = _reason(name, world, dense, optimizer, memoryless, way)
        if not why and goal == "time" and factor_of(name) is None:
            why = "nobody measured how many steps it takes to bf16's quality"
        if why:
            left_out[name] = why
        else:
            sizes[name] = _sent(name, world, way) or 0.0
    kept: dict[Hashable, str] = {}
    for name in [*EXACT, *sorted(sizes, key=lambda name: (sizes[name], name))]:
        alike = kept.setdefault(way.likeness(make_method(name)), name)
        if alike != name:
            left_out[name] = f"exchanges as {alike} does here"
    return list(kept.values()), left_out


def _of_class(quality: Quality, goal: Goal) -> list[str]:
    if goal == "time":
        return [name for name, of in known().items() if of.steps is not None]
    if quality == "exact":
        return []
    most = SAFE if quality == "safe" else quality
    return [name for name, of in known().items() if of.limit is not None and of.limit <= most]


def beside_scattered(names: Sequence[str], world: int, way: Way = TO_ALL) -> list[str]:
    """These methods; and after each that gathers, and names no communicator, the same over scatter-reduce, where that sends
    less.
    """
    both: list[str] = []
    for name in names:
        both.append(name)
        if name not in EXACT and (other := over_scatter_reduce(name)) is not None:
            sent, less = _sent(name, world, way), _sent(other, world, way)
            if sent is not None and less is not None and less < sent:
                both.append(other)
    return list(dict.fromkeys(both))


def over_scatter_reduce(spec: str) -> str | None:
    """The same method over scatter-reduce; None: it does not gather, names its communicator, or has no such."""
    try:
        name, knobs = parse(spec)
        if "communicator" in knobs or recipe(name).communicator != "allgather":
            return None
        other = f"{spec}{',' if knobs else ':'}communicator=scatterreduce"
        make_method(other)
    except ConfigurationError:
        return None
    return other


def keeps_memory(name: str) -> bool:
    """True if a method of this name owes what it does not send."""
    method = make_method(name)
    return method.owed(method.init(torch.zeros(8, 8, dtype=torch.float32, device="cpu"))) is not None


def _reason(name: str, world: int, dense: float | None, optimizer: Settings | None, memoryless: bool, way: Way) -> str:
    """The reason why a method cannot be used here; empty: it can."""
    method = make_method(name)
    if why := way.refuse(method):
        return why
    if method.needs_epochs:
        return "counts epochs"
    if method.needs:
        faults = [str(method.needs)] if optimizer is None else find_faults(method.needs, optimizer)
        if faults:
            return f"needs {', '.join(faults)}"
    if memoryless and keeps_memory(name):
        return "has a memory, and error= permits none"
    sent = _sent(name, world, way)
    if sent is not None and dense is not None and sent >= dense:
        return f"sends no less than bf16 among {world} workers"
    return ""


def _sent(name: str, world: int, way: Way) -> float | None:
    """Bytes of a step of a matrix of 2^20 numbers; None: they depend on the data."""
    traffic = way.traffic(make_method(name), _SHAPE, Peer(0, world))
    return None if traffic is None else float(traffic.sent)
