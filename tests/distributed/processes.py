"""Real worker processes: a pool that stays alive over many tests, and launches of their own for those that must die."""

from __future__ import annotations

import datetime
import importlib
import multiprocessing
import multiprocessing.connection
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

SECONDS = 120


class Pool:
    """``world`` processes in one gloo group. ``run`` calls a function of a test module in all of them."""

    def __init__(self, world: int):
        self.world = world
        context = multiprocessing.get_context("spawn")
        port = free_port()
        self._pipes, self._processes = [], []
        for rank in range(world):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, function: Any, *args: Any) -> list[Any]:
        """The results of ``function(rank, world, *args)`` by rank; the first error of a worker is raised here."""
        for pipe in self._pipes:
            pipe.send((function.__module__, function.__qualname__, args))
        results = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(SECONDS):
                self.close()
                raise TimeoutError(f"rank {rank} of {self.world} did not answer within {SECONDS} s")
            results.append(pipe.recv())
        for rank, (fine, value) in enumerate(results):
            if not fine:
                raise AssertionError(f"rank {rank} of {self.world} failed:\n{value}")
        return [value for _, value in results]

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(5)
            if process.is_alive():
                process.kill()


def _serve(rank: int, world: int, port: int, pipe: multiprocessing.connection.Connection) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    while True:
        try:
            module, name, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(importlib.import_module(module), name)(rank, world, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def torchrun(script: Path, *args: str, workers: int, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A script under torchrun in processes of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={workers}", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, str(script), *args], capture_output=True, text=True, timeout=SECONDS, env=env, check=False
    )


def launch(script: Path, *args: str, workers: int, env: tuple[dict[str, str], ...] = ()) -> list[tuple[int, str]]:
    """A script in processes of its own, without a launcher: exit status and output (of both kinds) of each rank.

    ``env``: what each rank's environment has beside the usual.
    """
    port = str(free_port())
    processes = []
    for rank in range(workers):
        mine = {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **mine, **(env[rank] if env else {})}
        command = [sys.executable, str(script), *args]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        )
    outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]
