"""Candidates: what each transport can tell of this process, and how it is made. Installed packages may add some."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from grace.errors import ConfigurationError
from grace.names import Names
from grace.transports.base import Transport

Why: TypeAlias = Callable[[], "str | None"]
F = TypeVar("F", bound=Callable[..., Transport])
_log = logging.getLogger("grace")


def _never() -> None: ...


@dataclass(frozen=True, slots=True)
class TransportMaker:
    """A transport that a job may run over.

    make: makes it; all ranks call it alike.
    running: why it is what this script uses already, as a clause such as "Horovod is initialized"; None: it does not.
    launched: why the launcher of this process implies it, such as "PMI_RANK is set"; None: it does not.
    """

    make: Callable[[], Transport]
    running: Why = _never
    launched: Why = _never


TRANSPORTS: Names[TransportMaker] = Names("transport", "transport", "grace.transports")


def register_transport(name: str, *, running: Why = _never, launched: Why = _never) -> Callable[[F], F]:
    """Decorator of a class without arguments, or of a function, that makes a transport. ``grace.transport(name)`` then gives
    it, as ``transport=name`` does in all doors.

    Args:
        name: lower-case letters, digits and ``_``.
        running: see :class:`TransportMaker`. ``grace.transport("auto")`` asks it before any launcher, in the order of
            registration.
        launched: likewise; Grace's own are asked first.

    Raises:
        ConfigurationError: a name that is taken or not lower case.
    """

    def decorate(make: F) -> F:
        TRANSPORTS.add(name, TransportMaker(make, running, launched), make)
        return make

    return decorate


def candidates() -> Iterator[tuple[str, TransportMaker]]:
    """All of them, by name: Grace's own, then those of installed packages, of which one that does not load is left out."""
    for name in TRANSPORTS.in_order():
        try:
            yield name, TRANSPORTS.find(name)
        except ConfigurationError as error:
            _log.warning("%s", error)
