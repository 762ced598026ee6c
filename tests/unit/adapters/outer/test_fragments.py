"""Fragments: of about the same size, and never two in flight."""

from __future__ import annotations

import pytest

from grace.adapters.outer.fragments import Fragments, balance
from grace.adapters.outer.presets import OuterSettings
from grace.errors import ConfigurationError


@pytest.mark.parametrize(("every", "fragments", "delay"), [(8, 1, 0), (8, 1, 7), (12, 4, 2), (6, 3, 1), (4, 4, 0)])
def test_each_starts_once_in_a_window_and_ends_so_many_steps_later(every: int, fragments: int, delay: int) -> None:
    made = Fragments({str(n): 1 for n in range(5)}, OuterSettings(every, fragments, delay))
    starts = {f: step for step in range(1, every + 1) if (f := made.starting(step)) is not None}
    ends = {f: step for step in range(1, every + 1) if (f := made.ending(step)) is not None}
    assert set(starts) == set(ends) == set(range(fragments))
    assert all(ends[f] - starts[f] == delay for f in starts)
    flying = [f for step in range(1, every + 1) for f in starts if starts[f] <= step < ends[f]]
    assert len(flying) == delay * fragments, "one at a time, for as long as the delay"
    assert ends[fragments - 1] == every, "none is in flight at the end of a window"


def test_they_are_balanced_in_an_order_that_ranks_share() -> None:
    sizes = {"embed": 100, "a": 40, "b": 40, "bias": 1, "c": 30, "head": 90}
    parts = balance(sizes, 3)
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    totals = [sum(sizes[name] for name in part) for part in parts]
    assert max(totals) <= 1.1 * sum(totals) / 3, "every third name, in turn, would make 130 of 301"
    assert all(list(part) == sorted(part, key=list(sizes).index) for part in parts)
    assert balance({"a": 0, "b": 0, "c": 5}, 3) == (("c",), ("a",), ("b",)), "none is empty"


def test_more_fragments_than_parameters_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="fragments=3, and the optimizer trains 2 parameters"):
        Fragments({"a": 1, "b": 1}, OuterSettings(every=6, fragments=3))
