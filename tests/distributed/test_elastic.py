"""Workers that are killed at any moment, and others that join: nobody hangs, and nothing is lost but what they owed."""

from __future__ import annotations

import datetime
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import grace
from tests.distributed.elastic_worker import SHAPES, gradients, work
from tests.distributed.processes import SERVER, free_port
from tests.patience import PATIENCE


class Job:
    """Workers, a store that outlives them, and a hand that kills."""

    def __init__(self, spec: str, workers: int, folder: Path, seed: int, defect: str = ""):
        self.random, self.folder = random.Random(seed), folder
        self.port = free_port()
        self.store = dist.TCPStore(
            "127.0.0.1", self.port, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=PATIENCE)
        )
        self.args = (spec, self.port, workers // 2 + 1, workers, str(folder), defect)
        self.running: dict[str, Any] = {}
        self.count = 0
        for _ in range(workers):
            self.start()

    def start(self) -> None:
        who = f"{self.count}-"
        self.count += 1
        self.running[who] = SERVER.Process(target=work, args=(who, *self.args), daemon=True)
        self.running[who].start()

    def step(self) -> int:
        return int(self.store.get("step")) if self.store.check(["step"]) else -1

    def wait_for(self, step: int) -> None:
        until = time.monotonic() + PATIENCE
        while self.step() < step:
            assert time.monotonic() < until, f"no step {step} within {PATIENCE:.0f} s: {self.read()[-12:]}"
            time.sleep(0.01)

    def kill(self) -> None:
        """Kills one of them, some steps from now, at a random moment."""
        self.wait_for(self.step() + 2)
        time.sleep(self.random.random() * 0.05)
        who = self.random.choice(list(self.running))
        process = self.running.pop(who)
        os.kill(process.pid, signal.SIGKILL)
        process.join(PATIENCE)

    def read(self) -> list[dict[str, Any]]:
        lines = [
            line
            for path in self.folder.glob("*.log")
            for line in path.read_text().splitlines()
            if line.endswith("}")  # a killed worker may have written half of one
        ]
        return sorted(map(json.loads, lines), key=lambda line: line["at"])

    def end(self) -> dict[str, Any]:
        """State of each worker that is left at the end."""
        until = time.monotonic() + PATIENCE
        while not {who for event in self.read()[-8:] for who in event.get("ids", ())} >= self.running.keys():
            assert time.monotonic() < until, f"not all have joined within {PATIENCE:.0f} s: {self.read()[-12:]}"
            time.sleep(0.05)
        self.store.set("stop", str(self.step() + 8))
        for who, process in self.running.items():
            process.join(PATIENCE)
            assert process.exitcode == 0, (who, process.exitcode, self.read()[-12:])
        return {who: torch.load(self.folder / f"{who}.pt") for who in self.running}

    def close(self) -> None:
        for process in self.running.values():
            if process.is_alive():
                process.kill()
                process.join(PATIENCE)


def replay(spec: str, events: list[dict[str, Any]]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The model and each worker's debts, if every step that counts is made once, among those who made it."""
    steps: dict[int, list[str]] = {}
    anew = set()
    for event in events:
        if "regrouped" in event:
            anew.add(event["step"])
        elif "step" in event:
            steps[event["step"]] = event["ids"]  # one that was made again comes later
    sim = grace.Simulator(grace.Policy([("*", spec)]), 1)
    workers = {steps[0][0]: sim.workers[0]}
    model = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(max(steps) + 1):
        for who in steps[step]:
            if who not in workers:
                workers[who] = sim.workers[sim.join()]
        for who in [who for who in workers if who not in steps[step]]:
            sim.lose(sim.workers.index(workers.pop(who)))
        sim.workers = [workers[who] for who in steps[step]]  # in the order of their ranks
        if step in anew:
            sim._members = []
        xs = [gradients(who, step) for who in steps[step]]
        for name, mean in sim.step({name: [x[name] for x in xs] for name in SHAPES}).items():
            model[name] -= mean
    return model, {who: worker.debts() for who, worker in workers.items()}


def distance(own: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert own.keys() == other.keys() == SHAPES.keys()
    return max(float((own[name] - other[name]).abs().max()) for name in SHAPES)


def run(spec: str, kills: int, workers: int, folder: Path, seed: int, defect: str = "") -> tuple[float, list[Any]]:
    """The largest distance of any worker's model or debts from the replay's."""
    job = Job(spec, workers, folder, seed, defect)
    try:
        for _ in range(kills):
            job.kill()
            job.start()
        ended, events = job.end(), job.read()
    finally:
        job.close()
    model, debts = replay(spec, events)
    assert len({state["step"] for state in ended.values()}) == 1
    first = next(iter(ended.values()))["model"]
    assert all(torch.equal(state["model"][name], first[name]) for state in ended.values() for name in SHAPES), (
        "replicas"
    )
    apart = [distance(state["model"], model) for state in ended.values()]
    return max(apart + [distance(state["debts"], debts[who]) for who, state in ended.items()]), events


@pytest.mark.parametrize("spec", ["topk:ratio=0.05"])
def test_a_killed_worker_takes_along_what_it_owed_and_no_more(spec: str, tmp_path: Path) -> None:
    apart, events = run(spec, 2, 3, tmp_path, seed=0)
    assert apart < 1e-4
    assert any("1 are lost, with what they owed: about 33%" in event.get("regrouped", "") for event in events)


@pytest.mark.night("a step that counts on some only")
@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "efsignsgd:communicator=scatterreduce,server_memory=true"])
def test_whenever_workers_are_killed_nothing_else_is_lost(spec: str, tmp_path: Path) -> None:
    """Fifty kills, and as many workers that join."""
    apart, _ = run(spec, 25, 4, tmp_path, seed=25)
    assert apart < 1e-4
