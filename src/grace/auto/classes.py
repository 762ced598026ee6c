"""Quality classes, which decide the methods that ``auto`` may use, by one rule from the survey's runs.

- ``exact``: sums of what the workers have computed, rounded at most: ``none`` and ``bf16``.
- ``safe``: and what on two tasks or more, with three seeds or more each, was never measured to end worse than uncompressed
  training by more than 2 % with intervals that do not touch.
- ``fast``: and what keeps the same rule with 25 %.

What nobody measured is in none of them. ``known.json`` beside this file is the rule applied to the archive of this repository:
``python -m docs.survey.findings`` writes it, and a test compares.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import torch

from grace.contract.peer import Peer
from grace.predict.ways import TO_ALL, Way
from grace.registry import method as make_method
from grace.registry import spell
from grace.run.optimizer import Settings, find_faults

Quality: TypeAlias = Literal["exact", "safe", "fast"]
QUALITIES: tuple[Quality, ...] = get_args(Quality)
EXACT = ("none", "bf16")  # fp32 and bf16, which are also what everything is compared with
LIMITS = {"safe": 0.02, "fast": 0.25}  # which share of uncompressed training's quality may be lost
NAMES = {"none": "fp32", "bf16": "bf16"}
PATH = Path(__file__).with_name("known.json")
_SHAPE = 1024, 1024  # of the matrix whose bytes are compared


@dataclass(frozen=True, slots=True)
class Known:
    """The survey's findings about a method.

    Attributes:
        quality: its class; "" none.
        loss: the largest share of uncompressed training's quality that it lost, of the tasks that count; None: it diverged.
        task: where. tasks, runs: on how many it was run, and how often.
    """

    quality: str
    loss: float | None
    task: str
    tasks: int
    runs: int

    def __str__(self) -> str:
        """On how little it rests."""
        if self.loss is None:
            return f"diverged on {self.task} ({self.tasks} tasks, {self.runs} runs)"
        lost = f"{self.loss:.1%} below fp32" if self.loss > 0 else "not below fp32"
        return f"at worst {lost} on {self.task} ({self.tasks} tasks, {self.runs} runs)"


@functools.cache
def known() -> dict[str, Known]:
    """The survey's findings, by method with all knobs."""
    return {name: Known(**of) for name, of in json.loads(PATH.read_text(encoding="utf-8")).items()}


def evidence_of(name: str) -> str:
    """On what it rests that a method may be used, in words."""
    if name in EXACT:
        return "the sum itself" if name == "none" else "the sum, rounded to bf16"
    evidence = known().get(spell(make_method(name)))
    return "nobody measured it" if evidence is None else str(evidence)


def permitted(
    quality: Quality,
    world: int,
    optimizer: Settings | None = None,
    chosen: Sequence[str] | None = None,
    *,
    memoryless: bool = False,
    way: Way = TO_ALL,
) -> tuple[list[str], dict[str, str]]:
    """The methods of a class, fp32 and bf16 first and the others by what they send; and what is left out, and why.

    Args:
        quality: the class.
        world: workers; what sends no less than bf16 among so many is left out.
        optimizer: its settings, where they are known: what needs others is left out. Where they are not, what needs anything.
        chosen: only these, and fp32 and bf16; they need not be in the class.
        memoryless: whether to leave out what has a memory.
        way: how tensors are exchanged; what cannot do that is left out.

    Raises:
        ConfigurationError: one of ``chosen`` is no method.
    """
    names = list(chosen) if chosen is not None else _of_class(quality)
    dense = _sent("bf16", world, way)
    sizes: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name in names:
        if name in EXACT:
            continue
        why = _reason(name, world, dense, optimizer, memoryless, way)
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


def _of_class(quality: Quality) -> list[str]:
    most = QUALITIES.index(quality)
    return [name for name, of in known().items() if of.quality in QUALITIES[: most + 1]]


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
