"""Statements of the page about GPUs on the tests that need one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs the package triton")

from tests.gpu import test_bits

PAGE = Path(__file__).parents[2] / "docs/data/gpu.md"


def read(page: str) -> tuple[list[str], list[str]]:
    """Reads the numbers of the row about bits, and the methods of the paragraph about torch operations."""
    (row,) = re.findall(
        r"\| bits .*to rounding only; of (\d+) methods and variants at (\d+) sizes.*, of (\d+) today", page
    )
    (names,) = re.findall(r"in another order then: (.+?) agree with", page, flags=re.DOTALL)
    return list(row), re.findall(r"`(\w+)`", names)


def test_the_page_says_what_is_compared() -> None:
    numbers, names = read(PAGE.read_text(encoding="utf-8"))
    buckets = len(test_bits.BUCKETS) * len(test_bits.OF_BUCKETS)
    assert numbers == [str(n) for n in (len(test_bits.OF_SIZES), len(test_bits.SIZES), buckets)]
    assert sorted(names) == sorted(test_bits.BY_TORCH)


def test_another_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_bits, "SIZES", test_bits.SIZES[1:])
    with pytest.raises(AssertionError):
        test_the_page_says_what_is_compared()
