"""Saved tensors and counts are checked in one place, for all that save some."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grace.errors import StateError
from grace.run.saved import check_fits, read_count

LIKE = {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "the theta that was saved should be tensors by name, got NoneType"),
        ({"a": LIKE["a"]}, "has other parameters: b"),
        ({**LIKE, 7: LIKE["a"]}, "has other parameters: 7"),
        ({**LIKE, "a": torch.zeros(3, 2)}, r"'a' should be torch.float32 \(2, 3\), got torch.float32 \(3, 2\)"),
        ({**LIKE, "b": torch.zeros(4)}, r"'b' should be torch.bfloat16 \(4,\), got torch.float32"),
        ({**LIKE, "b": "x" * 999}, r"'b' should be torch.bfloat16 \(4,\), got 'x{60,90}\n"),
    ],
)
def test_saved_tensors_that_are_others_are_named(given: Any, words: str) -> None:
    with pytest.raises(StateError, match=words):
        check_fits("theta", given, LIKE)


def test_those_of_this_run_fit() -> None:
    check_fits("theta", {name: torch.ones_like(x) for name, x in LIKE.items()}, LIKE)
    assert read_count(0, "steps") == 0


@pytest.mark.parametrize("value", [-1, 1.0, True, None, "3"])
def test_a_count_is_a_whole_number(value: Any) -> None:
    with pytest.raises(StateError, match=r"the state says steps .*; legal: a whole number >= 0"):
        read_count(value, "steps")
