"""The names of algorithms that are no methods are those that can be used, and the line that a message shows works."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

import grace
from grace.adapters.outer.presets import PRESETS, read_outer
from grace.errors import UnknownNameError
from grace.gossip.settings import read_gossip
from grace.optim.text import OPTIMIZERS
from grace.registry.algorithms import ALGORITHMS
from grace_bench.runs.algorithms import ALGORITHMS as IN_THE_SUITE


def test_the_names_are_those_that_can_be_used() -> None:
    kinds = {
        kind: {name for name in ALGORITHMS if ALGORITHMS[name].kind == kind} for kind in ("outer loop", "optimizer")
    }
    assert kinds == {"outer loop": set(PRESETS), "optimizer": set(OPTIMIZERS)}
    assert ALGORITHMS.keys() <= IN_THE_SUITE.keys(), "which also has other people's, as torch's own"
    assert not ALGORITHMS.keys() & set(grace.methods())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_line_that_is_shown_is_legal(name: str) -> None:
    def bind(kind: Any) -> Any:
        return lambda *args, **knobs: inspect.signature(kind).bind(*args, **knobs)

    places = {
        "outer": lambda model, optimizer, text: read_outer(text),
        "gossip": lambda model, optimizer, text: read_gossip(text),
        "optim": SimpleNamespace(**{kind.__name__: bind(kind) for kind in OPTIMIZERS.values()}),
    }
    model = SimpleNamespace(named_parameters=list)
    assert eval(ALGORITHMS[name].use, {"grace": SimpleNamespace(**places), "model": model, "optimizer": None})


def test_a_misspelt_algorithm_is_told_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown method 'dilocoo'; did you mean 'diloco'"):
        grace.method("dilocoo")
