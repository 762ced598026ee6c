"""States of learners and syncers, as they are read: what does not fit is a StateError before anything has changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.errors import StateError


@contextlib.contextmanager
def reading(whose: str) -> Iterator[None]:
    """Reads a state.

    Raises:
        StateError: in place of the error that a state leads to from which something is missing, or has another type.
    """
    try:
        yield
    except StateError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # PayloadError is a ValueError
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise StateError(f"the state of {whose} cannot be read: {what}") from error


def read_tensors(saved: Any, sizes: Sequence[int], what: str) -> list[Tensor]:
    """Copies of tensors of so many numbers: ``[n]`` each, float32 on the host.

    Raises:
        StateError: they are others.
    """
    if [x.numel() if isinstance(x, Tensor) else None for x in saved] != list(sizes):
        raise StateError(f"the {what} in a state should be tensors of {str(list(sizes))[:80]} numbers")
    return [x.detach().to("cpu", torch.float32).reshape(-1).clone() for x in saved]


def read_number(value: Any, what: str) -> float:
    """A number >= 0, whole or not.

    Raises:
        StateError: it is none.
    """
    if type(value) not in (int, float) or not value >= 0:
        raise StateError(f"a state says {what} {value!r:.80}; legal: a number >= 0")
    number: float = value
    return number


def read_text(value: Any, what: str) -> str:
    """A text.

    Raises:
        StateError: it is none.
    """
    if not isinstance(value, str):
        raise StateError(f"a state says {what} {value!r:.80}; legal: a text")
    return value
