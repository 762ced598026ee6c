"""Integrations that :func:`grace.attach` tries, one after the other: which kinds of models there are, and how Grace takes
over each kind's exchange of gradients. Installed packages may add some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from grace.adapters.handle import Handle
from grace.contract.method import Method
from grace.errors import ConfigurationError
from grace.names import Names
from grace.registry.policy import Policy
from grace.run.options import Options
from grace.transports.base import Transport

D = TypeVar("D", bound="type[Door]")


class Door(Protocol):
    """A kind of models. A class without arguments that :func:`register_door` decorates."""

    def takes(self, model: object) -> str | None:
        """None if it is for this model; else why not, and what to write instead, for an error that a user reads, or "" where
        there is nothing to say.
        """

    def open(
        self,
        model: Any,
        method: Policy | Method[Any] | str,
        options: Options,
        *,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        transport: str | Transport | None,
    ) -> Handle:
        """Exchanges the gradients of this model, which it takes, from now on; see :func:`grace.attach`."""


DOORS: Names[Door] = Names("door", "door", "grace.doors")


def register_door(name: str) -> Callable[[D], D]:
    """Class decorator: :func:`grace.attach` asks this :class:`Door`, after those that were registered before.

    Raises:
        ConfigurationError: a name that is taken or not lower case.
    """

    def decorate(factory: D) -> D:
        DOORS.add(name, factory(), factory)
        return factory

    return decorate


def find_door(model: object) -> Door:
    """The first door that takes this model: Grace's own are asked first, and packages are loaded if none of these does.

    Raises:
        ConfigurationError: none does; says why.
    """
    reasons = []
    for name in DOORS.in_order():
        try:
            door = DOORS.find(name)
        except ConfigurationError as error:  # of a package that does not load
            reasons.append(str(error))
            continue
        if (reason := door.takes(model)) is None:
            return door
        reasons.append(reason)
    raise ConfigurationError("\n".join(filter(None, reasons)))
