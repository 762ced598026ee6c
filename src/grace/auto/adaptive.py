"""Bits, ratio or rank of each layer under one budget, chosen anew every so many steps, alike on all ranks.

In the step after each choice is due, every rank measures what each choice would lose of its gradients, by layer; all ranks add
up everyone's in the order of ranks, and :mod:`grace.auto.allocate` decides. What memories owe is handed over.
"""

from __future__ import annotations

import glob
import json
import logging
import math
import struct
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grace.auto.allocate import fill_bits, within_cost
from grace.auto.site import Site
from grace.contract.wrapping import layers
from grace.errors import ConfigurationError, GraceWarning, stack_level
from grace.memories import Memory
from grace.predict.probe import Probe
from grace.registry import method as make_method
from grace.registry import spell
from grace.registry.adaptive import Adaptive
from grace.registry.policy import SMALL, Policy, Rule
from grace.run.session import Session

_log = logging.getLogger("grace")
_HALF = 0.5  # of the squared norm: a layer that loses more keeps less than it loses
FIRST = 1  # the step in which it is measured first


@dataclass(frozen=True)
class Layer:
    """A layer. method: chosen. bits: of a wire for each number. lost: share of the squared norm, of all ranks."""

    name: str
    numbers: int
    method: str
    bits: float
    lost: float


@dataclass(frozen=True)
class Adapted:
    """The choices for each layer; it prints as text. step: at which. budget, bits: for each number, wanted and had."""

    settings: str
    step: int
    budget: float
    bits: float
    layers: tuple[Layer, ...]
    policy: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        if not self.layers:
            return f"{self.settings}: nothing is measured yet"
        lines = [f"{self.settings}: {self.bits:.2f} of {self.budget:g} bits a number, chosen at step {self.step}"]
        lines += [
            f"  {layer.name}: {layer.numbers:,} numbers, {layer.method}, {layer.bits:.2f} bits, loses {layer.lost:.2%}"
            for layer in self.layers
        ]
        return "\n".join(lines)


class Adapting:
    """A rank's part in the choice; all ranks make theirs with the same arguments. It has the calls of
    :class:`grace.auto.driver.Driver`.

    Args:
        session: whose methods it chooses.
        settings: what the user said.
        site: what is exchanged, and how; None: the session's tensors are averaged. Where a rank has a part of a layer, or
            sends rows of it, what it loses of that counts.

    Raises:
        ConfigurationError: groups of parameters as one tensor, a method that cannot exchange what is exchanged here, or a
            budget that not even the fewest bytes keep.
    """

    def __init__(self, session: Session, settings: Adaptive, site: Site | None = None):
        if session.options.granularity != "parameter":
            raise ConfigurationError(
                f"adaptive chooses for each parameter, and granularity={session.options.granularity!r}; legal: 'parameter'"
            )
        self.session, self.settings, self.site = session, settings, site or Site.of(session)
        if why := self.site.way.refuse(make_method(settings.choices[0])):
            raise ConfigurationError(f"adaptive: {why}; legal here: method='qsgd' or 'topk'")
        shapes = self.site.shapes
        self.names = [name for name, shape in shapes.items() if len(shape) > 1 and math.prod(shape) >= SMALL]
        exchanged = shapes if self.site.parts is None else self.site.parts
        self.numbers = [math.prod(exchanged[name]) for name in self.names]
        self.cost = [[self._bits(text, exchanged[name]) for text in settings.choices] for name in self.names]
        self.lost: list[list[float]] = []
        self.choice = self._uniform()
        self.chosen_at, self.ended_by = 0, None if self.names else "nothing is large enough to be compressed"
        self._measured: dict[str, list[float]] = {}
        self._warned = False
        self._heard = False  # a bucket of a step in which it measures

    def _bits(self, text: str, shape: Sequence[int]) -> float:
        """Bytes that one worker encodes."""
        bits = self.site.way.wire_bits(make_method(text), shape, self.session.world)
        assert bits is not None
        return bits

    def _uniform(self) -> list[int]:
        """The same choice for all layers: the best that the budget permits."""
        most = self.settings.budget * sum(self.numbers)
        for c in reversed(range(len(self.settings.choices))):
            if add(row[c] for row in self.cost) <= most:
                return [c] * len(self.names)
        least = sum(row[0] for row in self.cost) / max(1, sum(self.numbers))
        raise ConfigurationError(
            f"adaptive: budget={self.settings.budget:g} bits a number is less than {self.settings.choices[0]} takes, "
            f"{least:.3g}; legal: more than that"
        )

    @property
    def active(self) -> bool:
        """True if it chooses."""
        return self.ended_by is None

    def begin(self) -> None:
        """Begins with the same choice for all layers. All ranks call it."""
        if self.active:
            self.session.offer([self.policy()])

    def policy(self) -> Policy:
        """A rule for each layer."""
        rules = [
            Rule(glob.escape(name), self.settings.choices[c]) for name, c in zip(self.names, self.choice, strict=True)
        ]
        return self.site.resolve(Policy([*rules, Rule("*", "none")], strict=False))

    # ---- steps ------------------------------------------------------------------------------------------------------
    @property
    def measures(self) -> bool:
        """True if :meth:`holds` looks at gradients in this step."""
        return self._due

    @property
    def _due(self) -> bool:
        return self.active and self.session.worker.step % self.settings.every == min(FIRST, self.settings.every - 1)

    def comes(self, names: Sequence[str]) -> None:
        """A bucket has come."""

    def holds(self, names: Sequence[str], gradients: Mapping[str, Tensor], last: bool) -> bool:
        """Measures gradients, each of any shape, if it is due; nothing waits."""
        if self._due:
            self._heard = True
            for name in set(names) & set(self.names) & gradients.keys():
                x = gradients[name]
                energy = float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2
                self._measured[name] = [energy] + [
                    energy * self._share(text, x, name) ** 2 for text in self.settings.choices
                ]
        return False

    def _share(self, text: str, x: Tensor, name: str) -> float:
        lost = self.site.way.lost(make_method(text), x, self.session.peer(name))
        return float("inf") if lost is None else lost

    def exchanged(self, nanoseconds: int) -> None:
        """A bucket was exchanged."""

    def ended(self) -> None:
        """A step's last exchange is over."""
        measured, self._measured = self._measured, {}
        heard, self._heard = self._heard, False
        if not (self.active and heard):
            return
        held = self.session.like.keys()  # one that has no part of a layer loses nothing of it
        absent = sum(name in held and name not in measured for name in self.names)
        width = 1 + len(self.settings.choices)
        numbers = [float(absent), *(value for name in self.names for value in measured.get(name, [0.0] * width))]
        rows = Probe(self.session.network, 1, beside=self.site.beside, device=self.session.device).all_gather_numbers(
            [struct.unpack("<q", struct.pack("<d", value))[0] for value in numbers]
        )
        told = [[struct.unpack("<d", struct.pack("<q", value))[0] for value in row] for row in rows]
        missed, *totals = [add(values) for values in zip(*told, strict=True)]
        if missed or any(not 0 <= value < 1e300 for value in totals):
            return  # a layer that was not used, an inf or NaN: this step says nothing
        table = [totals[k * width : (k + 1) * width] for k in range(len(self.names))]
        self._choose([row[0] for row in table], [row[1:] for row in table])

    def _choose(self, energy: list[float], error: list[list[float]]) -> None:
        budget = self.settings.budget * sum(self.numbers)
        chosen = self._fill(error, budget) if self.settings.how == "filling" else within_cost(self.cost, error, budget)
        assert chosen is not None, "the same choice for all layers keeps the budget"
        self.lost = [[lost / max(1e-300, whole) for lost in row] for row, whole in zip(error, energy, strict=True)]
        self.chosen_at = self.session.worker.step
        if self.session.rank == 0:
            self._warn_of_losses(chosen)
        if chosen != self.choice:
            self.choice = chosen
            self.session.offer([self.policy()])
            if self.session.rank == 0:
                for line in str(self.explain()).splitlines():
                    _log.info("adaptive, step %d: %s", self.chosen_at, line.strip())

    def _warn_of_losses(self, chosen: list[int]) -> None:
        """Warns once of layers that lose more than they keep, where no memory sends it later."""
        bare = not any(isinstance(layer, Memory) for layer in layers(make_method(self.settings.choices[0])))
        worst = {name: row[c] for name, row, c in zip(self.names, self.lost, chosen, strict=True) if row[c] > _HALF}
        if not (bare and worst) or self._warned:
            return
        self._warned = True
        name = max(worst, key=worst.__getitem__)
        warnings.warn(
            f"adaptive: {len(worst)} of {len(self.names)} layers lose more than they keep, {name!r} {worst[name]:.0%} of its "
            f"squared norm: what is sent is mostly noise. budget={self.settings.budget:g} bits a number is too little for "
            f"{self.settings.method}; raise it, or take method='topk', whose memory sends the rest later",
            GraceWarning,
            stacklevel=stack_level(),
        )

    def _fill(self, error: list[list[float]], budget: float) -> list[int]:
        """Real bits, rounded down to what there is."""
        low, high = self.cost[0][0] / self.numbers[0], self.cost[0][-1] / self.numbers[0]
        scale = [
            max(1e-300, row[0] * 4.0 ** (cost[0] / n))
            for row, cost, n in zip(error, self.cost, self.numbers, strict=True)
        ]
        wanted = fill_bits(self.numbers, scale, budget, low, high)
        return [
            max((c for c in range(len(row)) if row[c] <= bits * n * (1 + 1e-9)), default=0)
            for row, bits, n in zip(self.cost, wanted, self.numbers, strict=True)
        ]

    # ---- for the user -----------------------------------------------------------------------------------------------
    @property
    def bits(self) -> float:
        """Bits of a wire for each number of the tensors that it covers."""
        return sum(row[c] for row, c in zip(self.cost, self.choice, strict=True)) / max(1, sum(self.numbers))

    @property
    def values(self) -> dict[str, float]:
        """For logs: bits of a number."""
        return {"adaptive/bits": self.bits}

    def explain(self) -> Adapted:
        """The choices for each layer."""
        shown = tuple(
            Layer(name, n, self.settings.choices[c], row[c] / n, lost[c])
            for name, n, c, row, lost in zip(self.names, self.numbers, self.choice, self.cost, self.lost or [], strict=True)
        ) if self.lost else ()  # fmt: skip
        return Adapted(
            str(self.settings), self.chosen_at, self.settings.budget, self.bits, shown, repr(self.session.worker.home)
        )

    def end(self, why: str) -> None:
        """It chooses no more."""
        self.ended_by = self.ended_by or why

    def state_dict(self) -> dict[str, Any]:
        """The part of a checkpoint that belongs to the choice, beside the session's state."""
        return {"version": 1, "settings": str(self.settings), "methods": self.session.methods()}

    def load(self, policy: Policy, measured: str | None = None) -> None:
        """A state was loaded: its choices are used until the next ones are due."""
        like, choices = self.session.like, list(self.choice)
        legal = [spell(make_method(text)) for text in self.settings.choices]
        texts = {k: spell(policy.method_for(name, like[name], 0)) for k, name in enumerate(self.names) if name in like}
        if all(text in legal for text in texts.values()):
            for k, text in texts.items():
                choices[k] = legal.index(text)
            self.choice = choices
        self.session.offer([policy, self.policy()], 1)


def add(values: Iterable[float]) -> float:
    """Their sum, one after the other: the builtin rounds otherwise from Python 3.12 on, and ranks decide by it."""
    total = 0.0
    for value in values:
        total += value
    return total
