"""A worker whose handle goes on when another one dies, as a process; :mod:`tests.distributed.test_regroup` starts it."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

SHAPE = (24, 20)
DIES, JOINS, ENDS = 4, 6, 10  # steps


def gradient(who: int, step: int) -> Any:
    import torch

    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1000 * step + who))


def work(who: int, door: str, port: int, folder: str) -> None:
    """Trains until step ``ENDS``; worker 2 dies in a backward pass. Saves what it has seen."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import grace
    from grace.transports.alone import Alone
    from grace.transports.rounds import Rounds

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    rounds = Rounds(store, 2, 3, patience=0.5, seconds=PATIENCE, timeout=60)
    net: Any = nn.Linear(SHAPE[1], SHAPE[0], bias=False)
    if who != 3:  # it is told
        nn.init.zeros_(net.weight)
    policy = grace.Policy([("*", "topk:ratio=0.05")])
    opt: Any = torch.optim.SGD(net.parameters(), lr=1.0 if who != 3 else 7.0, momentum=0.5)
    if door == "optimizer":
        opt = grace.DistributedOptimizer(opt, policy, net.named_parameters(), transport=Alone())
        model, handle = net, opt.handle
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = DistributedDataParallel(net)
        handle = grace.attach(model, policy, optimizer=opt)
    messages: list[str] = []
    ids: list[int] = []

    def meet() -> None:
        nonlocal model, ids
        for _ in range(20):
            try:
                network = rounds.meet()
                if door == "optimizer":
                    messages.append(str(handle.regroup(network)))
                else:
                    model = DistributedDataParallel(net, init_sync=False)
                    messages.append(str(handle.regroup(model)))
                ids = [int(text) for text in handle.elastic.session.all_gather_text(str(who), 60)]
                return
            except grace.errors.TransportError as error:
                messages.append(f"failed: {error}")
        raise AssertionError("no group in 20 rounds")

    meet()
    steps: dict[int, list[int]] = {}
    applied = torch.zeros(SHAPE)
    while (step := handle.elastic.session.worker.step) < ENDS:
        handle.elastic.wants = rounds.waiting()
        debts = {name: x.clone() for name, x in handle.elastic.session.worker.debts().items()}
        torch.save(debts, Path(folder) / f"debts-{who}-{step}.pt")
        opt.zero_grad()
        out = (model(torch.eye(SHAPE[1])).t() * gradient(who, step)).sum()
        if who == 2 and step == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            out.backward()
            opt.step()
        except (grace.errors.TransportError, RuntimeError) as error:
            messages.append(f"heard: {error}")
            meet()
            continue
        applied += net.weight.grad
        steps[step] = ids
        store.set("step", str(step))
        if handle.elastic.wanted:
            meet()
        while step == JOINS and handle.world < 3:  # whoever comes
            if rounds.waiting():
                meet()
    torch.save(
        {
            "model": net.weight.detach(), "momentum": opt.state[net.weight]["momentum_buffer"], "applied": applied,
            "debt": handle.elastic.session.worker.debts()["weight"], "steps": steps, "said": messages,
            "lr": opt.param_groups[0]["lr"],
        },
        Path(folder) / f"{who}.pt",
    )  # fmt: skip
    os._exit(0)  # threads of gloo may still be at connections of workers that are gone
