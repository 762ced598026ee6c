"""Strings for optimizers: ``"onebitadam:freeze_step=100"`` makes a factory."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from grace.errors import ConfigurationError, unknown
from grace.optim.base import CompressedOptimizer
from grace.optim.demo import DeMo
from grace.optim.dion import Dion
from grace.optim.onebit_adam import OneBitAdam
from grace.optim.onebit_lamb import OneBitLamb
from grace.optim.zero_one_adam import ZeroOneAdam
from grace.registry import parse as split_text
from grace.registry.text import strip_parentheses

OPTIMIZERS: dict[str, type[CompressedOptimizer]] = {
    "onebitadam": OneBitAdam,
    "zerooneadam": ZeroOneAdam,
    "onebitlamb": OneBitLamb,
    "demo": DeMo,
    "dion": Dion,
}
GIVEN = frozenset({"self", "params", "group", "transport", "options"})  # by whoever calls the factory


def optimizers() -> tuple[str, ...]:
    """The names that :func:`parse` knows.

    Example:
        >>> "onebitadam" in optimizers()
        True
    """
    return tuple(OPTIMIZERS)


def parse(text: str) -> functools.partial[CompressedOptimizer]:
    """A factory of the optimizer that a string names, to be called with parameters, and with whatever else its class takes,
    such as ``lr``, which counts more than the string's.

    Args:
        text: a name, or a name with knobs: ``"onebitadam:freeze_step=100,betas=(0.9,0.99)"``. A method that has commas is put
            in parentheses: ``"onebitadam:method=(topk:ratio=0.01,memory=none)"``.

    Raises:
        UnknownNameError: an unknown optimizer or knob; names the nearest.
        ConfigurationError: it does not parse. What is out of range is refused when the optimizer is made.

    Example:
        >>> make = parse("onebitadam:freeze_step=100,weight_decay=0.01")
        >>> make(torch.nn.Linear(64, 32).named_parameters(), lr=1e-3).freeze_step
        100
    """
    name, knobs = split_text(text)
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    legal = inspect.signature(OPTIMIZERS[name]).parameters.keys() - GIVEN
    for knob in knobs:
        if knob not in legal:
            raise unknown(f"knob of {name}", knob, legal)
    return functools.partial(OPTIMIZERS[name], **{knob: _read(text, knob, value) for knob, value in knobs.items()})


def _read(text: str, knob: str, value: Any) -> Any:
    if knob == "method" and value is None:
        return "none"  # the method of this name
    inside = strip_parentheses(value) if isinstance(value, str) else value
    if knob != "betas":
        return inside
    try:
        first, second = map(float, str(inside).split(","))
    except ValueError:
        raise ConfigurationError(f"{text!r}: betas={value!r}; legal: two numbers, betas=(0.9,0.999)") from None
    return first, second
