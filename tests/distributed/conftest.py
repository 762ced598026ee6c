from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.processes import Pool


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


@pytest.fixture(params=[2, 3], ids=["2 workers", "3 workers"])
def pool(request: pytest.FixtureRequest, pools: dict[int, Pool]) -> Pool:
    return pools[request.param]


@pytest.fixture
def pair(pools: dict[int, Pool]) -> Pool:
    return pools[2]
