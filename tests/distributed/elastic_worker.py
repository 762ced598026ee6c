"""A worker that goes on whoever dies, as a process of its own; :mod:`tests.distributed.test_elastic` kills it."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

SHAPES = {"w": (24, 20), "b": (30,)}


def gradients(who: str, step: int) -> dict[str, Any]:
    import torch

    number = int(who.split("-")[0])
    generator = torch.Generator().manual_seed(1000 * step + number)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def work(who: str, spec: str, port: int, least: int, most: int, folder: str, defect: str) -> None:
    """Exchanges until the store says when to stop; writes each step that counts, and what it has at the end."""
    import torch
    import torch.distributed as dist

    import grace
    from grace.run.elastic import Elastic
    from grace.run.session import Session
    from grace.transports.alone import Alone
    from grace.transports.rounds import Rounds

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    output = (Path(folder) / f"{who}.log").open("w", buffering=1)

    def say(**what: Any) -> None:
        output.write(json.dumps({"at": time.time(), "who": who, **what}) + "\n")

    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        rounds = Rounds(store, least, most, patience=1.0, seconds=PATIENCE, timeout=60)
        like = {name: torch.empty(shape) for name, shape in SHAPES.items()}
        elastic = Elastic(Session(like, grace.Policy([("*", spec)]), Alone()), seconds=60)
        if defect == "commits at once":
            elastic.session.worker.holds = False
        model = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        ids: list[str] = []

        def meet() -> None:
            nonlocal ids
            for _ in range(40):
                try:
                    got = elastic.regroup(rounds.meet(), list(model.values()))
                    ids = elastic.session.all_gather_text(who, 60)
                    say(regrouped=str(got), ids=ids, applied=got.applied, step=got.step)
                    if got.applied:
                        say(step=got.step - 1, ids=before)
                    return
                except grace.errors.TransportError as error:
                    say(failed=str(error)[:200])
            raise AssertionError("no group in 40 rounds")

        before: list[str] = []
        meet()
        while True:
            step = elastic.session.worker.step
            if store.check(["stop"]) and step >= int(store.get("stop")):
                break
            elastic.wants = rounds.waiting()
            before = ids
            try:
                means = elastic.step(gradients(who, step))
            except grace.errors.TransportError as error:
                say(heard=str(error)[:200])
                meet()
                continue
            for name, mean in means.items():
                model[name] -= mean
            say(step=step, ids=ids)
            store.set("step", str(step))
            if elastic.wanted:
                meet()
        torch.save(
            {"model": model, "debts": elastic.session.worker.debts(), "step": step, "ids": ids},
            Path(folder) / f"{who}.pt",
        )
        say(ended=True)
        elastic.session.close()
        dist.destroy_process_group()
    except BaseException as error:
        say(error=f"{type(error).__name__}: {error}")
        raise
    os._exit(0)  # threads of gloo may still be at connections of workers that are gone
