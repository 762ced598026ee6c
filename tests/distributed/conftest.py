from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.distributed.processes import HorovodPool, LaunchedPool, MPIPool, Pool
from tests.distributed.with_horovod import find_python


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in real processes run one after the other, in one of the test runner's own processes."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.fixture(scope="session")
def pools() -> Iterator[dict[int, Pool]]:
    made = {world: Pool(world) for world in (2, 3)}
    yield made
    for pool in made.values():
        pool.close()


@pytest.fixture(scope="session")
def mpi_pools() -> Iterator[Callable[[int], MPIPool]]:
    started: dict[int, MPIPool] = {}

    def find(world: int) -> MPIPool:
        if world not in started:
            started[world] = MPIPool(world)
        return started[world]

    yield find
    for pool in started.values():
        pool.close()


@pytest.fixture(scope="session")
def horovod_pools() -> Iterator[Callable[[int], HorovodPool]]:
    started: dict[int, HorovodPool] = {}

    def find(world: int) -> HorovodPool:
        if world not in started or not started[world].fit:
            started[world] = HorovodPool(world, find_python())
        return started[world]

    yield find
    for pool in started.values():
        if pool.fit:
            pool.close()


@pytest.fixture(
    params=[("gloo", 2), ("gloo", 3), ("mpi", 2), ("mpi", 4), ("horovod", 2), ("horovod", 3)],
    ids=lambda one: f"{one[0]} x {one[1]}",
)
def workers(
    request: pytest.FixtureRequest, pools: dict[int, Pool], mpi_pools: Callable[[int], MPIPool],
    horovod_pools: Callable[[int], HorovodPool],
) -> Pool | LaunchedPool:  # fmt: skip
    """One after the other, workers of every kind of transport."""
    kind, world = request.param
    if kind == "horovod":
        return horovod_pools(world)
    return mpi_pools(world) if kind == "mpi" else pools[world]


@pytest.fixture(params=[2, 4], ids=lambda world: f"mpi x {world}")
def mpi(request: pytest.FixtureRequest, mpi_pools: Callable[[int], MPIPool]) -> MPIPool:
    return mpi_pools(request.param)


@pytest.fixture(params=[2, 3], ids=["2 workers", "3 workers"])
def pool(request: pytest.FixtureRequest, pools: dict[int, Pool]) -> Pool:
    return pools[request.param]


@pytest.fixture
def pair(pools: dict[int, Pool]) -> Pool:
    return pools[2]
