"""Handles of an optimizer and of DistributedDataParallel that go on when a worker has died, or joins: in processes."""

from __future__ import annotations

import datetime
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import grace
from grace.errors import ConfigurationError, GraceError
from grace.transports.alone import Alone
from tests.distributed.processes import SERVER, free_port
from tests.distributed.regroup_worker import DIES, ENDS, JOINS, gradient, work
from tests.patience import PATIENCE


def run(door: str, folder: Path) -> dict[int, dict[str, Any]]:
    """Workers 0 to 2, of which 2 dies, and 3, which joins: what those have that are left."""
    port = free_port()
    store = dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=PATIENCE)
    )
    workers = [SERVER.Process(target=work, args=(who, door, port, str(folder)), daemon=True) for who in range(4)]
    try:
        for process in workers[:3]:
            process.start()
        until = time.monotonic() + PATIENCE
        while not store.check(["step"]) or int(store.get("step")) < JOINS:
            assert time.monotonic() < until, "they do not get on"
            time.sleep(0.02)
        workers[3].start()
        for process in workers:
            process.join(PATIENCE)
        assert [process.exitcode for process in workers] == [0, 0, -signal.SIGKILL, 0]
    finally:
        for process in workers:
            if process.is_alive():
                process.kill()
                process.join()
    return {who: torch.load(folder / f"{who}.pt", weights_only=True) for who in (0, 1, 3)}


@pytest.mark.parametrize("door", ["optimizer", "ddp"])
def test_a_handle_goes_on_without_one_that_died_and_with_one_that_joins(door: str, tmp_path: Path) -> None:
    ends = run(door, tmp_path)
    for end in ends.values():
        assert torch.equal(end["model"], ends[0]["model"])
        assert torch.equal(end["momentum"], ends[0]["momentum"])
        assert end["lr"] == 1
    steps = ends[0]["steps"]
    assert sorted(steps) == list(range(ENDS)), ends[0]["said"]
    assert [sorted(steps[step]) for step in (0, DIES, ENDS - 1)] == [[0, 1, 2], [0, 1], [0, 1, 3]]
    assert any("1 are lost, with what they owed: about 33%" in text for text in ends[0]["said"])
    computed = sum(sum(gradient(who, step) for who in ids) / len(ids) for step, ids in steps.items())
    lost = torch.load(tmp_path / f"debts-2-{DIES}.pt", weights_only=True)["weight"]
    owed = sum(end["debt"] for end in ends.values())
    torch.testing.assert_close(ends[0]["applied"] + owed + lost, computed, atol=1e-4, rtol=0)


def make(**options: Any) -> Any:
    net = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return net, grace.DistributedOptimizer(optimizer, **options, transport=Alone())


def test_what_cannot_go_on_is_refused() -> None:
    _, optimizer = make(method="topk")
    optimizer.handle._session.close(GraceError("broken"))
    with pytest.raises(GraceError, match="call regroup once before the first step, or load a checkpoint"):
        optimizer.handle.regroup(Alone())
    _, optimizer = make(method="auto")
    with pytest.raises(ConfigurationError, match="auto has measured the workers with which it began"):
        optimizer.handle.regroup(Alone())


def test_between_two_steps_of_one_worker() -> None:
    net, optimizer = make(method="topk:ratio=0.1")
    for step in range(2):
        assert str(optimizer.handle.regroup(Alone())) == f"step {step}: 1 workers go on, 0 join; nothing is lost"
        net(torch.ones(2, 64)).sum().backward()
        optimizer.step()
    assert optimizer.handle.stats.steps == 2
    net(torch.ones(2, 64)).sum().backward()  # dropped
    optimizer.handle.regroup(Alone())
    assert net.weight.grad is None
    optimizer.zero_grad()
