"""Replays of a captured step of a sharded model: the reduce-scatter within a machine hears of them, as the average between
machines does.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grace.adapters.sharded import ShardedHandle
from grace.compute import backends
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import cpu_as_accelerator
from grace.registry.policy import Policy
from grace.run.options import Options
from grace.run.session import Session
from grace.transports.alone import Alone


def session(spec: str, shape: tuple[int, ...], *, scatters: bool) -> Session:
    like = {"w": torch.empty(shape)}
    return Session(like, Policy([("*", spec)]), Alone(), Options(check_replicas_every=0), scatters=scatters)


def step(handle: Any) -> None:
    handle._fast.scatter({"w": torch.linspace(-1, 1, 64)[None].clone()})
    handle._session.exchange({"w": torch.linspace(-1, 1, 64)})
    handle._applied = type("Applied", (), {"end": lambda self: None})()
    handle._end()


@pytest.fixture
def handle() -> Any:
    made: Any = ShardedHandle.__new__(ShardedHandle)
    made._fast = session("qsgd:bits=4", (1, 64), scatters=True)
    made._session = session("topk:ratio=0.1", (64,), scatters=False)
    made._replicated, made._weights, made._driver = True, None, None
    return made


def test_both_sessions_hear_of_replays(handle: Any):
    with backends.using("reference"), cpu_as_accelerator():
        step(handle)
        with pretend_capturing():
            step(handle)
        both = handle._session, handle._fast
        assert [s.stats.steps for s in both] == [1, 1], "a capture is no step"
        for count in (2, 3):
            handle.replayed()
            assert [s.worker.step for s in both] == [count, count]
            assert [int(s.worker._captures._clock) for s in both] == [count, count]
            assert [s.stats.steps for s in both] == [count, count]
        assert [s.stats.dense_bytes for s in both] == [3 * 256, 3 * 128]
