from __future__ import annotations

import pytest

from benchmarks.codecs.floors import ARITHMETIC, MEMORY, STREAM, Floors
from benchmarks.codecs.goals import ADD_CYCLES, GOALS, RATIO, WIRES, Goal
from grace.contract.facts import Facts
from grace.registry import method
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK
from grace_bench.codecs.compressors import compressor_of

QUANTIZE = Goal("quantize", ENCODE, "qsgd", 1.1)
# 0.2 ns for a number of y.add_(x), as where the goals were set: twelve bytes, or 13 cycles for sixteen numbers.
THERE = Floors(byte=0.2e-9 / 12, cycle=0.2e-9 / ADD_CYCLES, add=0.2e-9, threads=1)


def test_where_goals_were_set_they_are_what_they_were() -> None:
    limit, binds = THERE.limit(QUANTIZE)
    assert (limit, binds) == (pytest.approx(1.1), ARITHMETIC)


def test_memory_that_is_slower_makes_no_goal_in_add_harder_than_it_was_to_reach() -> None:
    slow = Floors(THERE.byte * 4, THERE.cycle, 4 * THERE.add, 1)
    limit, binds = slow.limit(QUANTIZE)  # its y.add_(x) is four times as slow, too
    assert (limit, binds) == (pytest.approx(STREAM * 4.516 / 12), MEMORY)


def test_a_slower_clock_allows_more() -> None:
    slow = Floors(THERE.byte, THERE.cycle * 2, THERE.add, 1)
    assert slow.limit(QUANTIZE) == (pytest.approx(2.2), ARITHMETIC)


def test_threads_share_cycles_and_may_spare_some() -> None:
    two = Floors(THERE.byte / 2, THERE.cycle, THERE.add / 2, 2)
    spared = Goal("top-k", ENCODE, "topk", 1.1, spare=1.3)
    assert two.limit(QUANTIZE)[0] == pytest.approx(1.1)
    assert two.limit(spared)[0] == pytest.approx(1.43)


@pytest.mark.parametrize(("operation", "moved"), [(ENCODE, 4.516), (FEEDBACK, 12.516), (DECODE, 8.128)])
def test_the_bytes_that_an_operation_moves(operation: str, moved: float) -> None:
    assert Goal("", operation, "qsgd", 1.0).bytes == pytest.approx(moved)


def test_wires_are_as_long_as_they_are() -> None:
    wanted = {goal.method for goal in GOALS if goal.unit == RATIO and goal.method is not None}
    assert set(WIRES) == wanted
    for name, size in WIRES.items():
        compressor = compressor_of(method(f"{name}{',' if ':' in name else ':'}memory=none"))
        facts = Facts() if compressor is None else compressor.facts(1_000_000)
        if facts.payload is not None:
            assert facts.payload / 1e6 == pytest.approx(size, rel=0.05), name
