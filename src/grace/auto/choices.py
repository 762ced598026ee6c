"""Parts of a plan: buckets and tensors of a model, their exchanges, the policy of a plan, and the methods of a state."""

from __future__ import annotations

import functools
import glob
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from grace.auto.calibrate import Calibration
from grace.auto.model import Model
from grace.auto.planner import Part, Plan, Problem
from grace.errors import StateError
from grace.predict.timeline import Host, Phase
from grace.registry import method, spell
from grace.registry.policy import SMALL, Policy, Rule

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Buckets:
    """The buckets of a model, in the order in which they come.

    names: of the tensors of each. shapes: of each tensor. keep: patterns, and the method of the first that matches.
    parts: shapes of what is exchanged of each tensor; None: all of it.
    """

    names: tuple[tuple[str, ...], ...]
    shapes: Mapping[str, Shape]
    keep: tuple[tuple[str, str], ...] = ()
    parts: Mapping[str, Shape] | None = None

    @property
    def exchanged(self) -> Mapping[str, Shape]:
        """The shapes of what is exchanged."""
        return self.shapes if self.parts is None else self.parts

    @property
    def numbers(self) -> tuple[int, ...]:
        """The size of each bucket, in numbers."""
        return tuple(sum(math.prod(self.exchanged[name]) for name in names) for names in self.names)

    def fixed(self, name: str) -> str | None:
        """The method that a tensor has whatever is chosen: what is kept, and "none" for small ones; None: it has no such."""
        return self._kept(name) or ("none" if self._is_small(name) else None)

    def method_of(self, name: str, chosen: str) -> str:
        """The method that a tensor has where this one is chosen: what is kept, and for small ones what it leaves to them."""
        return self._kept(name) or (uncompressed_beside(chosen) if self._is_small(name) else chosen)

    def _kept(self, name: str) -> str | None:
        return next((method for pattern, method in self.keep if fnmatchcase(name, pattern)), None)

    def _is_small(self, name: str) -> bool:
        shape = self.shapes[name]
        return len(shape) <= 1 or math.prod(shape) < SMALL

    def methods_of(self, first: int, end: int, method: str) -> dict[str, list[Shape]]:
        """The shapes of the tensors of buckets ``first`` to ``end - 1``, by the method that they have where this is chosen."""
        shapes: dict[str, list[Shape]] = {}
        for names in self.names[first:end]:
            for name in names:
                shapes.setdefault(self.method_of(name, method), []).append(self.exchanged[name])
        return shapes


@functools.cache
def uncompressed_beside(chosen: str) -> str:
    """The method of small tensors beside those of this one."""
    return spell(method(chosen).uncompressed(method("none")))


def problem_of(
    buckets: Buckets,
    model: Model | None,
    known: Calibration,
    methods: Sequence[str],
    errors: Mapping[str, Mapping[str, float]] | None = None,
    most: float | None = None,
    *,
    fuses: bool = True,
    factors: Mapping[str, float] | None = None,
) -> Problem:
    """The planning problem.

    Args:
        buckets: of the model.
        model: its own step; None: not measured yet, and then exchanges alone count.
        known: what was measured of codecs and link.
        methods: that may be used, fp32 and bf16 first.
        errors: of each method, by tensor.
        most: that a tensor may have; where it has more, or nobody knows, it cannot.
        fuses: whether neighbours may travel as one.
        factors: times as many steps that a method takes; None: all take as many.
    """

    def phases(first: int, end: int, method: str) -> list[Phase] | None:
        if end > first + 1 and not fuses:
            return None
        if most is not None and method not in methods[:2]:
            of = (errors or {}).get(method, {})
            names = [name for part in buckets.names[first:end] for name in part if buckets.fixed(name) is None]
            if any(of.get(name, most + 1) > most for name in names):
                return None
        return known.bucket(buckets.methods_of(first, end, method))

    @functools.cache
    def issue(first: int, end: int, method: str) -> float:
        return known.issue(buckets.methods_of(first, end, method))

    host = None if not known.device else Host() if model is None else model.host
    threads = max(1, int(known.cores))
    seconds = 1e-6 if model is None else model.compute
    count = len(buckets.names)
    ready = model.ready if model is not None else [(k + 1) / count for k in range(count)]
    kinds = {name: [kind for kind, *_ in known.rates[name].moved] for name in methods if name in known.rates}
    return Problem(
        seconds * min(threads, known.cores),
        threads,
        known.cores,
        ready,
        buckets.numbers,
        list(methods),
        phases,
        kinds=kinds,
        factors=factors or {},
        host=host,
        issue=issue,
    )


@dataclass(frozen=True)
class Choice:
    """A plan in a form that can be used. plan: of the buckets. policy: the same for tensors. flushes: the buckets after
    which all that has come is exchanged.
    """

    plan: Plan
    policy: Policy
    flushes: frozenset[int]

    @classmethod
    def of(cls, plan: Plan, buckets: Buckets) -> Choice:
        """The choice of this plan."""
        return cls(plan, policy_of(plan, buckets), frozenset(part.end - 1 for part in plan.parts))


def policy_of(plan: Plan, buckets: Buckets) -> Policy:
    """The policy of a plan: what is kept, small tensors as they are, and a rule for each tensor that differs from most."""
    counts: dict[str, int] = {}
    for chosen, numbers in zip(plan.methods, buckets.numbers, strict=True):
        counts[chosen] = counts.get(chosen, 0) + numbers
    usual = max(counts, key=lambda chosen: counts[chosen])
    if len(counts) == 1 and not buckets.keep:
        return Policy.of(usual)
    rules = [Rule(pattern, method) for pattern, method in buckets.keep]
    rules += [
        Rule(glob.escape(name), own)
        for chosen, names in zip(plan.methods, buckets.names, strict=True)
        for name in names
        if (own := buckets.method_of(name, chosen)) != buckets.method_of(name, usual)
    ]
    return Policy([*rules, *Policy.of(usual).rules], strict=False)


def guess_buckets(shapes: Mapping[str, Shape], most: int, keep: tuple[tuple[str, str], ...] = ()) -> Buckets:
    """The buckets of ``most`` numbers that DistributedDataParallel will make, roughly: from the last tensor to the first."""
    buckets: list[list[str]] = []
    filled = most
    for name in reversed(list(shapes)):
        if filled >= most:
            buckets.append([])
            filled = 0
        buckets[-1].append(name)
        filled += math.prod(shapes[name])
    return Buckets(tuple(map(tuple, buckets)), shapes, keep)


# ---- what a state says of a choice ---------------------------------------------------------------------------------------
def read_methods(saved: Any) -> dict[str, str]:
    """The method of each tensor, from what :meth:`grace.auto.driver.Driver.state_dict` gave.

    Raises:
        StateError: it is not that.
    """
    methods = saved.get("methods") if isinstance(saved, Mapping) else None
    if not isinstance(methods, Mapping) or not all(isinstance(text, str) for pair in methods.items() for text in pair):
        raise StateError(f"not a Grace state: its auto should say the method of each tensor, got {saved!r}")
    return dict(methods)


def parts_of(
    policy: Policy,
    buckets: Buckets,
    methods: Sequence[str],
    like: Mapping[str, Tensor],
    tell: Callable[[Sequence[int]], Sequence[Sequence[int]]],
) -> list[Part] | None:
    """Each bucket with the method that its largest tensor has under a policy, as a rank knows that has a part of it; None: one
    is not among ``methods``. All ranks call it.

    Args:
        policy: of the state.
        buckets: of the model.
        methods: that may be used, in the same order on all ranks.
        like: this rank's tensors, of any shape, by name.
        tell: tells all ranks whole numbers, and gives everyone's.
    """
    numbers = []
    for names in buckets.names:
        free = [name for name in names if buckets.fixed(name) is None] or list(names)
        name = max(free, key=lambda name: math.prod(buckets.shapes[name]))
        text = spell(policy.method_for(name, like[name], 0)) if name in like else ""
        numbers.append(methods.index(text) if text in methods else -1)
    chosen = [max(column) for column in zip(*tell(numbers), strict=True)]
    return None if min(chosen) < 0 else [Part(j, j + 1, methods[k]) for j, k in enumerate(chosen)]
