"""The tests' own workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def fail(rank: int, world: int) -> None:
    raise KeyError(f"of rank {rank}")


def count(rank: int, world: int) -> int:
    return world


def test_workers_that_failed_say_so_and_are_not_used_again(pools: Callable[[str, int], Any]) -> None:
    workers = pools("gloo", 1)
    with pytest.raises(AssertionError, match=r"rank 0 of 1 failed:(.|\n)*KeyError: 'of rank 0'"):
        workers.run(fail)
    assert pools("gloo", 1) is not workers
    assert pools("gloo", 1).run(count) == [1]
