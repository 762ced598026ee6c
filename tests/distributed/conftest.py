from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import grace.transports.choose  # noqa: F401 - whose transports are registered then
from grace.transports.candidates import TRANSPORTS
from tests.distributed.processes import HorovodPool, LaunchedPool, MPIPool, Pool, Workers, skip_without_mpi
from tests.distributed.with_horovod import find_python


class _Beside(Pool):
    """Processes that know each other over gloo, for a transport that is made between such."""

    def __init__(self, kind: str, world: int):
        self.kind = kind
        super().__init__(world)


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
        ready = started.get((kind, world))
        if ready is None or not ready.fit:
            ready = started[kind, world] = makers.get(kind, functools.partial(_Beside, kind))(world)
        return ready

    yield find
    for pool in started.values():
        if pool.fit:
            pool.close()


# Three workers are the smallest group in which ranks are not just "this one and the other".
OTHERS = pytest.mark.night("mean without 1/W", "rows in another order", "maximum that adds", "another root")
_KINDS = [("gloo", 2), ("gloo", 3), ("mpi", 2), ("mpi", 3), ("mpi", 4), ("horovod", 2), ("horovod", 3)]
_OWN = {kind for kind, _ in _KINDS} | {"nccl", "torch", "alone"}  # the last three run over gloo here, or need none
_NEW = [(kind, 3) for kind in TRANSPORTS.in_order() if kind not in _OWN]
_STAY = [("gloo", 3), ("mpi", 3), *_NEW]


@pytest.fixture(
    params=[pytest.param(kind, marks=() if kind in _STAY else OTHERS) for kind in [*_KINDS, *_NEW]],
    ids=lambda kind_and_world: f"{kind_and_world[0]} x {kind_and_world[1]}",
)
def workers(request: pytest.FixtureRequest, pools: Callable[[str, int], Any]) -> Pool | LaunchedPool:
    """Workers of every kind of transport, one kind after the other."""
    ready: Pool | LaunchedPool = pools(*request.param)
    return ready


@pytest.fixture(
    params=[pytest.param(2, marks=OTHERS), 3, pytest.param(4, marks=OTHERS)], ids=lambda world: f"mpi x {world}"
)
def mpi(request: pytest.FixtureRequest, pools: Callable[[str, int], Any]) -> MPIPool:
    ready: MPIPool = pools("mpi", request.param)
    return ready


@pytest.fixture(params=[pytest.param(2, marks=OTHERS), 3], ids=["2 workers", "3 workers"])
def pool(request: pytest.FixtureRequest, pools: Callable[[str, int], Any]) -> Pool:
    ready: Pool = pools("gloo", request.param)
    return ready


@pytest.fixture
def pair(pools: Callable[[str, int], Any]) -> Pool:
    ready: Pool = pools("gloo", 2)
    return ready


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of the bench are forked, not started: see :mod:`tests.distributed.forked`."""
    from tests.distributed.forked import fork_workers  # it needs the bench, which not all environments have

    fork_workers(monkeypatch)
