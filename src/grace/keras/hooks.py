"""Methods of one object in place of those of its class, hidden from Keras's tracking, so that none is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MARK = "_grace"


def is_hooked(owner: Any, name: str) -> bool:
    """True if a method of this object was set here."""
    return hasattr(vars(owner).get(name), _MARK)


class Hooks:
    """Remembers what was set on which object, to take it off again."""

    def __init__(self) -> None:
        self._set: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """``owner.name`` becomes ``make(what it was)``, on this object alone."""
        hook = make(getattr(owner, name))
        setattr(hook, _MARK, True)
        owner.__dict__[name] = hook
        self._set.append((owner, name, hook))

    def __bool__(self) -> bool:
        return bool(self._set)

    def remove(self) -> None:
        """Gives the objects back the methods of their classes."""
        for owner, name, hook in reversed(self._set):
            if owner.__dict__.get(name) is hook:
                del owner.__dict__[name]
        self._set.clear()
