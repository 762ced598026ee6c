"""The subject of a verification: a method, and what the laws need to know about it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

import grace
from grace.communicators import Hierarchical
from grace.communicators.base import Communicator
from grace.contract.compressor import Compressor
from grace.contract.knobs import as_call
from grace.contract.method import Method, refuse_unpromised
from grace.contract.wrapping import find_compressor, layers
from grace.errors import CompositionError, ConfigurationError
from grace.memories import Memory
from grace.registry import COMMUNICATORS, recipe_of
from grace.schedules import Delayed, Scheduled
from grace.verify.outcome import Profile
from grace.verify.running import STEPS_PER_EPOCH


def is_memory(method: Method[Any]) -> bool:
    """True if it carries something from step to step that its mean does not show."""
    return isinstance(method, Memory)


def conserves(method: Method[Any]) -> bool:
    """True if x - rest is promised to average to the mean. Not so under a vote, in a sum that the network rounds, or in a
    method that keeps its own memory and hands out no rest.
    """
    compressor = find_compressor(method)
    if compressor is not None:
        narrow = isinstance(method, grace.Allreduce) and compressor.predivide
        return compressor.aggregation == "mean" and not narrow
    return (
        method.owed(method.init(torch.zeros(2, 2, dtype=torch.float32, device="cpu"))) is None
        or remembers(method) is not None
    )


def remembers(method: Method[Any]) -> Method[Any] | None:
    """The method under error feedback; None where a memory is refused."""
    try:
        return grace.ErrorFeedback(method)
    except CompositionError:
        return None


@dataclass(frozen=True, slots=True)
class Subject:
    """A method, and its parts.

    method: as it will run.
    core: the method without memories and delays; its facts are about this.
    remembered: the core under error feedback; None where it refuses a memory.
    wrapped: what was put around a bare compressor, in words; empty if nothing was.
    """

    method: Method[Any]
    core: Method[Any]
    remembered: Method[Any] | None
    wrapped: str = ""

    @property
    def all(self) -> list[Method[Any]]:
        """The method and the remembered one; only one if they are the same."""
        return list(dict.fromkeys([self.method] + ([self.remembered] if self.remembered is not None else [])))

    @property
    def compressor(self) -> Compressor | None:
        """The compressor of the core, if it has one."""
        return find_compressor(self.core)

    @property
    def conserves(self) -> bool:
        """True if x - rest of the core is promised to average to the mean."""
        return conserves(self.core)

    @property
    def least_world(self) -> int:
        """A parameter server has to be one of the workers."""
        return int(getattr(self.core, "server", 0)) + 1

    def fit_world(self, world: int) -> int:
        """The number of workers, at least this one, that it can be tried with: whole machines, where it knows of them."""
        whole = next((layer.machine for layer in layers(self.method) if isinstance(layer, Hierarchical)), 1)
        return -(-max(world, self.least_world * whole) // whole) * whole


def compose(subject: Subject, profile: Profile) -> dict[str, Subject]:
    """The same compressor over other communicators that take it, alone and under error feedback where that is legal: it keeps
    its promises wherever a user puts it. Unless ``every``: over ScatterReduce only, where W workers compress W rows together,
    and what was summed once more. Empty for a method that has its own exchange.
    """
    compressor = subject.compressor
    if compressor is None or not isinstance(subject.core, Communicator):
        return {}
    others: dict[str, Subject] = {}
    for name in COMMUNICATORS.names() if profile.every else ("scatterreduce",):
        kind = COMMUNICATORS.find(name)
        if kind is type(subject.core):
            continue
        try:
            core: Method[Any] = kind(compressor)
        except CompositionError:
            continue
        others[kind.__name__] = Subject(core, core, remembers(core))
    return others


def subject(given: object) -> Subject:
    """The subject for a method, the string that makes one, a compressor, a class of either, or a function that returns one.

    Raises:
        ConfigurationError: it is none of these, or it needs arguments.
    """
    made = _make(given)
    wrapped = ""
    if isinstance(made, Compressor):
        made, wrapped = _around(made)
    core = _core(made)
    remembered = made if isinstance(made, Memory) and made.loses_nothing else remembers(core)
    return Subject(made, core, remembered, wrapped)


def _make(given: object) -> Method[Any] | Compressor:
    refuse_unpromised(given)  # the laws are of means that are the same on all ranks
    if isinstance(given, Method | Compressor):
        return given
    if isinstance(given, str):
        return grace.method(given)
    name = getattr(given, "__name__", repr(given))
    if not callable(given):
        raise ConfigurationError(f"{given!r} is not a method: a Compressor, a Method, a string, or a class or function")
    if isinstance(given, type) and not issubclass(given, Method | Compressor):
        raise ConfigurationError(f"{name} is neither a subclass of grace.Compressor nor of grace.Method")
    if isinstance(given, type) and inspect.isabstract(given):
        missing = ", ".join(sorted(given.__abstractmethods__))
        raise ConfigurationError(f"{name} lacks {missing}")
    if needed := _list_needed(given):
        raise ConfigurationError(
            f"{name} needs arguments: {', '.join(needed)}; give them defaults, or name an instance or a function that "
            "takes none and returns one"
        )
    if isinstance(given, type) and (entry := recipe_of(given)):
        return grace.method(entry.name)
    made = given()
    if isinstance(made, type):
        raise ConfigurationError(f"{name} returns a class, {made.__name__}; it should return a method")
    return _make(made)


def _list_needed(given: Any) -> list[str]:
    """The parameters that have no default."""
    try:
        parameters = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in plain and p.default is inspect.Parameter.empty]


def _around(compressor: Compressor) -> tuple[Method[Any], str]:
    """The first communicator that takes it, and error feedback if that is legal."""
    reasons = []
    for name in COMMUNICATORS.names():
        try:
            bare: Method[Any] = COMMUNICATORS.find(name)(compressor)
        except CompositionError as error:
            reasons.append(f"{name}: {error}")
            continue
        memory = remembers(bare)
        return bare, f"in {type(bare).__name__}, " + ("alone and under ErrorFeedback" if memory else "without a memory")
    raise CompositionError(f"no communicator takes {as_call(compressor)}: {'; '.join(reasons)}")


def _core(method: Method[Any]) -> Method[Any]:
    while isinstance(method, Memory | Delayed | Scheduled | Hierarchical):
        method = method.at(0, STEPS_PER_EPOCH) if isinstance(method, Scheduled) else method.method
    return method
