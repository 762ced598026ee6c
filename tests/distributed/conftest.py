from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.distributed.processes import HorovodPool, LaunchedPool, MPIPool, Pool, Workers, skip_without_mpi
from tests.distributed.with_horovod import find_python


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[str, int], Any]]:
    """Finds the workers of a kind of transport; they start when first asked for, and anew where a test has harmed them. Tests
    that use them are one group for pytest-xdist (tests/tiers.py): they start once, in one of its processes.
    """
    makers: dict[str, Callable[[int], Workers]] = {
        "gloo": Pool, "mpi": MPIPool, "horovod": lambda world: HorovodPool(world, find_python()),
    }  # fmt: skip
    started: dict[tuple[str, int], Workers] = {}

    def find(kind: str, world: int) -> Workers:
        if kind == "mpi":
            skip_without_mpi()
        found = started.get((kind, world))
        if found is None or not found.fit:
            found = started[kind, world] = makers[kind](world)
        return found

    yield find
    for pool in started.values():
        if pool.fit:
            pool.close()


# Three workers are the smallest group in which ranks are not just "this one and the other".
OTHERS = pytest.mark.night("mean without 1/W", "rows in another order", "maximum that adds", "another root")
_KINDS = [("gloo", 2), ("gloo", 3), ("mpi", 2), ("mpi", 3), ("mpi", 4), ("horovod", 2), ("horovod", 3)]
_STAY = [("gloo", 3), ("mpi", 3)]


@pytest.fixture(
    params=[pytest.param(kind, marks=() if kind in _STAY else OTHERS) for kind in _KINDS],
    ids=lambda one: f"{one[0]} x {one[1]}",
)
def workers(request: pytest.FixtureRequest, pools: Callable[[str, int], Any]) -> Pool | LaunchedPool:
    """One after the other, workers of every kind of transport."""
    found: Pool | LaunchedPool = pools(*request.param)
    return found


@pytest.fixture(
    params=[pytest.param(2, marks=OTHERS), 3, pytest.param(4, marks=OTHERS)], ids=lambda world: f"mpi x {world}"
)
def mpi(request: pytest.FixtureRequest, pools: Callable[[str, int], Any]) -> MPIPool:
    found: MPIPool = pools("mpi", request.param)
    return found


@pytest.fixture(params=[pytest.param(2, marks=OTHERS), 3], ids=["2 workers", "3 workers"])
def pool(request: pytest.FixtureRequest, pools: Callable[[str, int], Any]) -> Pool:
    found: Pool = pools("gloo", request.param)
    return found


@pytest.fixture
def pair(pools: Callable[[str, int], Any]) -> Pool:
    found: Pool = pools("gloo", 2)
    return found
