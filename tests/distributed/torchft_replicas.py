"""Three replicas under torchft's own lighthouse, of which one goes; :mod:`tests.distributed.test_torchft` runs it."""

from __future__ import annotations

import datetime
import os
import sys
import threading
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist

import grace
from grace.adapters.torchft import FaultTolerant
from tests.patience import PATIENCE

SHAPE, STEPS, GONE = (8, 6), 10, 4


def gradient(who: int, step: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(100 * step + who))


def replica(who: int, address: str, record: dict[Any, Any], leaves: bool) -> None:
    from torchft import Manager, ProcessGroupGloo

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = torch.zeros(SHAPE)
    group = ProcessGroupGloo(timeout=datetime.timedelta(seconds=120))
    manager = Manager(
        pg=group, min_replica_size=2, use_async_quorum=False, replica_id=f"r{who}",
        load_state_dict=lambda state: model.copy_(state["model"]), state_dict=lambda: {"model": model.clone()},
        store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1, lighthouse_addr=address,
        timeout=datetime.timedelta(seconds=120), hostname="127.0.0.1",
    )  # fmt: skip
    ft = FaultTolerant(manager, group, {"w": torch.empty(SHAPE)}, grace.Policy([("*", "topk:ratio=0.1")]), timeout=120)
    while manager.current_step() < STEPS and not (leaves and manager.current_step() == GONE):
        manager.start_quorum()
        step = manager.current_step()
        means = ft.exchange({"w": gradient(who, step)})
        if ft.should_commit():
            model += means["w"]
            record.setdefault(("step", step), []).append(who)
    record["model", who] = model.clone()
    record["debt", who] = ft.elastic.session.worker.debts()["w"].clone()
    record["last", who] = str(ft.last)
    manager.shutdown(wait=False)


def main() -> None:
    from torchft._torchft import LighthouseServer

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=2000)
    record: dict[Any, Any] = {}
    threads = [
        threading.Thread(target=replica, args=(who, lighthouse.address(), record, who == 2), daemon=True)
        for who in range(3)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.1, until - time.monotonic()))
    computed = torch.zeros(SHAPE)
    for step in range(STEPS):
        here = record["step", step]
        computed += sum(gradient(who, step) for who in here) / len(here)
    assert torch.equal(record["model", 0], record["model", 1]), "replicas"
    accounted = record["model", 0] + record["debt", 0] + record["debt", 1] + record["debt", 2]
    assert float((accounted - computed).abs().max()) < 1e-5, "nothing is lost but with a replica"
    assert "1 are lost, with what they owed: about 33%" in record["last", 0], record["last", 0]
    sys.stdout.write("fine\n")
    sys.stdout.flush()
    os._exit(0)  # torchft's servers have threads of their own


if __name__ == "__main__":
    main()
