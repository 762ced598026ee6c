"""Methods whose knobs follow the step or the epoch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.contract.facts import Facts
from grace.contract.knobs import spell_value
from grace.contract.method import Exchanged, Method
from grace.contract.needs import NOTHING, Needs
from grace.contract.peer import Peer
from grace.errors import CompositionError
from grace.flags.capturing import CapturedStep, refuse_capture
from grace.schedules.schedule import Schedule

_SAMPLES = ((256, 256), (1000,))  # shapes at which states are compared at construction


class MethodTemplate(Protocol):
    """Builds a method from knobs: a template of the registry. Hashable."""

    @property
    def name(self) -> str:
        """The registered name."""

    def build(self, knobs: dict[str, Any]) -> Method[Any]:
        """The method with these knobs."""

    def uncompressed(self, knobs: dict[str, Any], plain: Method[Any]) -> Method[Any]:
        """See :meth:`grace.Method.uncompressed`; knobs may be schedules."""


@functools.lru_cache(maxsize=1024)
def _build(template: MethodTemplate, knobs: tuple[tuple[str, Hashable], ...]) -> Method[Any]:
    return template.build(dict(knobs))


@dataclass(frozen=True, slots=True, repr=False)
class Scheduled(Method[Any]):
    """A registered method with knobs that follow the step or epoch. ``method("topk:ratio=linear(...)")`` makes one.

    Every value is tried at construction. The state goes on while knobs change, so a knob that changes its shape (such as
    the rank of PowerSGD) is refused: use a policy with rules for steps, which carries over what is owed.

    Args:
        template: the recipe.
        knobs: all knobs that are given, pairs (name, value or :class:`Schedule`).
    """

    template: Any
    knobs: tuple[tuple[str, Any], ...]

    def __post_init__(self) -> None:
        for shape in _SAMPLES:
            self._states(torch.zeros(shape, dtype=torch.float32, device="cpu"))

    def __repr__(self) -> str:
        return f"method({str(self)!r})"

    def __str__(self) -> str:
        return f"{self.template.name}:" + ",".join(f"{knob}={spell_value(value)}" for knob, value in self.knobs)

    def at(self, step: int, steps_per_epoch: int | None = None) -> Method[Any]:
        """The method of one step.

        Raises:
            ConfigurationError: the step is captured, and a knob goes on changing after it.
        """
        if isinstance(step, CapturedStep):
            for knob, value in self.knobs:
                if isinstance(value, Schedule) and not value.ended(step, steps_per_epoch):
                    refuse_capture(
                        f"{knob}={value} changes after step {int(step)}, and in replays it would not; capture a step after "
                        "its end"
                    )
        return self._with(lambda schedule: schedule.at(step, steps_per_epoch))

    def _with(self, choose: Callable[[Schedule], float]) -> Method[Any]:
        values = ((knob, choose(value) if isinstance(value, Schedule) else value) for knob, value in self.knobs)
        return _build(self.template, tuple(values))

    def _variants(self) -> list[Method[Any]]:
        """The methods at every value of each schedule, with the other schedules at their first value."""
        first = self._with(lambda schedule: schedule.points[0][1])
        out = [first]
        for name, schedule in self.knobs:
            if isinstance(schedule, Schedule):
                for value in schedule.values()[1:]:
                    fixed = ((k, v.points[0][1] if isinstance(v, Schedule) else v) for k, v in self.knobs)
                    out.append(_build(self.template, tuple((k, value if k == name else v) for k, v in fixed)))
        return out

    def _states(self, like: Tensor) -> Any:
        """The first state, if all values agree on its shape."""
        variants = self._variants()
        states = [variant.init(like) for variant in (variants[0], *dict.fromkeys(variants[1:]))]
        if any(_shape(state) != _shape(states[0]) for state in states[1:]):
            raise CompositionError(
                f"{self}: a schedule cannot change the shape of the state; use a policy with rules for steps: "
                "grace.Rule('*', ..., until_step=1000), grace.Rule('*', ..., from_step=1000)"
            )
        return states[0]

    @property
    def needs(self) -> Needs:
        """Requirements of all values together."""
        return functools.reduce(operator.or_, (variant.needs for variant in self._variants()), NOTHING)

    @property
    def needs_shape(self) -> bool:
        return any(variant.needs_shape for variant in self._variants())

    @property
    def has_scatter(self) -> bool:
        return all(variant.has_scatter for variant in self._variants())

    @property
    def needs_epochs(self) -> bool:
        return any(isinstance(value, Schedule) and value.unit == "epochs" for _, value in self.knobs)

    def axes(self, world: int) -> Mapping[str, int]:
        return self._variants()[0].axes(world)

    def init(self, like: Tensor) -> Any:
        return self._states(like)

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        return (yield from self.at(peer.step, peer.steps_per_epoch).exchange(x, state, peer))

    def scatter(self, rows: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        return (yield from self.at(peer.step, peer.steps_per_epoch).scatter(rows, state, peer))

    def facts(self, like: Tensor) -> Facts:
        """Facts that hold at every value, for tensors like this one."""
        every = [variant.facts(like) for variant in self._variants()]
        return Facts(
            unbiased=all(facts.unbiased for facts in every),
            contraction=_worst(min, [facts.contraction for facts in every]),
            variance=_worst(max, [facts.variance for facts in every]),
            deterministic=all(facts.deterministic for facts in every),
            payload=every[0].payload if len({facts.payload for facts in every}) == 1 else None,
        )

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return self.at(peer.step, peer.steps_per_epoch).traffic(like, peer)

    def scatter_traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return self.at(peer.step, peer.steps_per_epoch).scatter_traffic(like, peer)

    def uncompressed(self, plain: Method[Any]) -> Method[Any]:
        if all(variant.uncompressed(plain) == plain for variant in self._variants()):
            return plain
        return self.template.uncompressed(dict(self.knobs), plain)  # type: ignore[no-any-return]

    def kinds(self, state: Any) -> Any:
        return self._with(lambda schedule: schedule.points[0][1]).kinds(state)

    def owed(self, state: Any) -> Tensor | None:
        return self._with(lambda schedule: schedule.points[0][1]).owed(state)

    def with_memory(self) -> Method[Any]:
        raise CompositionError(f"{self} is complete as it is; give it its memory as a knob: memory=residual")


def _worst(choose: Callable[[list[float]], float], bounds: list[float | None]) -> float | None:
    known = [bound for bound in bounds if bound is not None]
    return choose(known) if len(known) == len(bounds) else None


def _shape(state: Any) -> Any:
    """The properties of a state that must not change: its structure, and the shapes and types of its tensors."""
    if isinstance(state, Tensor):
        return (tuple(state.shape), state.dtype)
    return tuple(_shape(part) for part in state) if isinstance(state, tuple) else type(state)
