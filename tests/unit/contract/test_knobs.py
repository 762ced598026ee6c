"""Legal values of a knob follow from its annotation."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest

import grace
from grace.contract.knobs import (
    Count,
    Odd,
    Positive,
    Range,
    Rotation,
    Share,
    Steps,
    check_knobs,
    check_value,
    describe_knobs,
)
from grace.errors import ConfigurationError
from grace.registry import recipe

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


@dataclass(frozen=True)
class Knobs:
    flag: bool = False
    number: float = 0.0
    whole: int = 0
    word: Literal["a", "b", 3] = "a"
    share: Share = 1.0
    count: Count | None = None
    steps: Steps = 0
    size: Positive = 1
    few: Annotated[int, Range(2, 4)] = 2
    many: Annotated[int, Range(2, 16)] = 2
    open: Annotated[float, Range(0, below=1)] = 0
    least: Annotated[float, Range(least=1)] = 1
    block: Rotation = 4
    odd: Annotated[int, Odd()] = 1
    other: Unknown = None
    text: str | int = "x"

    def __post_init__(self) -> None:
        check_knobs(self)


LEGAL = {
    "flag": "True, False",
    "number": "a finite number",
    "whole": "a whole number",
    "word": "'a', 'b', 3",
    "share": "0 < share <= 1",
    "count": "a whole number >= 1, or none",
    "steps": "a whole number >= 0",
    "size": "0 < size < inf",
    "few": "2, 3, 4",
    "many": "2, 3, ..., 16",
    "open": "0 <= open < 1",
    "least": "1 <= least < inf",
    "block": "2, 4, 8, ..., 65536",
    "odd": "1, 3, 5, ...",
}


def test_what_is_legal_in_words():
    assert describe_knobs(Knobs) == LEGAL


@pytest.mark.parametrize(
    ("knob", "values"),
    [
        ("flag", (True, False)), ("number", (1, -2.5, np.float32(3), np.int64(2))), ("whole", (-3, np.int64(2))),
        ("word", ("a", "b", 3)), ("share", (1, 1e-9)), ("count", (None, 1)), ("steps", (0, 7)), ("size", (1e30,)),
        ("few", (2, 4)), ("open", (0, 0.99)), ("least", (1, 1e9)), ("block", (2, 65536)), ("odd", (1, 5)),
        ("other", (object(),)), ("text", (3, "y", None)),
    ],
)  # fmt: skip
def test_legal_values(knob: str, values: tuple[Any, ...]):
    for value in values:
        assert getattr(Knobs(**{knob: value}), knob) is value


@pytest.mark.parametrize(
    ("knob", "values"),
    [
        ("flag", (1, 0, "true", None)), ("number", (True, "1", math.nan, math.inf, None, 1j)), ("whole", (1.0, True, "3")),
        ("word", ("c", 3.0, True, None)), ("share", (0, 1.01, True, "half", math.nan)), ("count", (0, True, 1.5)),
        ("steps", (-1, False)), ("size", (0, math.inf, -1)), ("few", (1, 5, 3.0)), ("open", (1, -0.1)), ("least", (0.5,)),
        ("block", (3, 1, 131072, 4.0)), ("odd", (0, 2, -1)),
    ],
)  # fmt: skip
def test_illegal_values_say_what_is_legal(knob: str, values: tuple[Any, ...]):
    for value in values:
        with pytest.raises(ConfigurationError) as raised:
            Knobs(**{knob: value})
        assert str(raised.value) == f"Knobs: {knob}={value!r} is out of range; legal: {LEGAL[knob]}"


def test_arguments_of_functions():
    check_value("attach", "seed", 3, Steps)
    with pytest.raises(ConfigurationError, match="attach: seed='x' is out of range; legal: a whole number >= 0"):
        check_value("attach", "seed", "x", Steps)


@pytest.mark.parametrize("seed", ["x", 1.5, True, None])
def test_a_seed_is_a_whole_number(seed: Any):
    with pytest.raises(ConfigurationError, match=r"seed=.* is out of range; legal: a whole number"):
        grace.Simulator("topk", 2, seed=seed)


@pytest.mark.parametrize("text", ["topk:ratio=true", "topk:ratio=false", "qsgd:bits=true", "none:memory=residual,beta=true",
                                  "topk:start=true", "powersgd:rank=true", "topk:memory=dgc,clip=true",
                                  "topk:communicator=parameterserver,server=true", "qsgd:lossless=zlib,lossless.level=true",
                                  "topk:index=3", "rht:rounds=true"])  # fmt: skip
def test_true_is_not_a_number(text: str):
    with pytest.raises(ConfigurationError, match="legal: "):
        grace.method(text)


@pytest.mark.parametrize("name", grace.methods())
def test_every_knob_is_checked(name: str):
    """By its annotation, or by hand."""
    entry = recipe(name)
    for knob in (field.name for field in dataclasses.fields(entry.factory)):
        with pytest.raises(ConfigurationError):
            entry.factory(**{knob: 1j})
