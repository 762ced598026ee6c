from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.processes import HorovodPool, LaunchedPool, MPIPool, Pool, Workers, skip_without_mpi
from tests.distributed.with_horovod import find_python


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in real processes run one after the other, in one of the test runner's own processes."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[str, int], Any]]:
    """Finds the workers of a kind of transport; they start when first asked for, and anew where a test has harmed them."""
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


@pytest.fixture(
    params=[("gloo", 2), ("gloo", 3), ("mpi", 2), ("mpi", 4), ("horovod", 2), ("horovod", 3)],
    ids=lambda one: f"{one[0]} x {one[1]}",
)
def workers(request: pytest.FixtureRequest, pools: Callable[[str, int], Any]) -> Pool | LaunchedPool:
    """One after the other, workers of every kind of transport."""
    found: Pool | LaunchedPool = pools(*request.param)
    return found


@pytest.fixture(params=[2, 4], ids=lambda world: f"mpi x {world}")
def mpi(request: pytest.FixtureRequest, pools: Callable[[str, int], Any]) -> MPIPool:
    found: MPIPool = pools("mpi", request.param)
    return found


@pytest.fixture(params=[2, 3], ids=["2 workers", "3 workers"])
def pool(request: pytest.FixtureRequest, pools: Callable[[str, int], Any]) -> Pool:
    found: Pool = pools("gloo", request.param)
    return found


@pytest.fixture
def pair(pools: Callable[[str, int], Any]) -> Pool:
    found: Pool = pools("gloo", 2)
    return found
