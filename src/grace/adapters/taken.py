"""Parameters that an optimizer of Grace exchanges: a second exchange of the same gradient would let replicas drift apart."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from grace.errors import ConfigurationError

_taken: weakref.WeakKeyDictionary[Any, tuple[frozenset[Tensor], str]] = weakref.WeakKeyDictionary()


def take(owner: object, parameters: Iterable[Tensor], text: str) -> None:
    """From now on, until :func:`release`, or as long as ``owner`` lives, :func:`refuse_shared` refuses these parameters.

    Args:
        owner: who exchanges them.
        parameters: of any shapes.
        text: who that is, and what to do: the end of a sentence that begins with the parameter.
    """
    _taken[owner] = (frozenset(parameters), text)


def release(owner: object) -> None:
    """Ends what :func:`take` began."""
    _taken.pop(owner, None)


def refuse_shared(named: Mapping[str, Tensor]) -> None:
    """Refuses parameters, of any shape, whose gradients an optimizer of Grace exchanges already.

    Args:
        named: the parameters, by name.

    Raises:
        ConfigurationError: names one of them.
    """
    if _find_shared(named) is not None:
        gc.collect()  # an optimizer that was dropped may wait for this
        if (shared := _find_shared(named)) is not None:
            raise ConfigurationError(shared)


def _find_shared(named: Mapping[str, Tensor]) -> str | None:
    for known, text in list(_taken.values()):
        for name, p in named.items():
            if p in known:
                return f"{name!r} {text}"
    return None
