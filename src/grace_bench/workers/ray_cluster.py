"""Runs in workers on an existing Ray cluster: ``--launcher ray``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

from grace.errors import ConfigurationError
from grace_bench.extras import need
from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import failure_of
from grace_bench.runs.results import Document, Failure
from grace_bench.workers.ports import free_port

_POLL_SECONDS = 0.5


class RayWorker:
    """A worker, in a process of Ray's."""

    def __init__(self, rank: int):
        self.rank, self.done = rank, (0, 0)
        self._store: Any = None

    def find_address(self) -> tuple[str, int]:
        """The address at which rank 0 can be reached, and a free port there."""
        util = need("ray.util", extra="ray")
        return util.get_node_ip_address(), free_port("")

    def join(self, address: str, port: int, world: int, timeout: float) -> None:
        """Meets the others."""
        from grace_bench.workers.rendezvous import open_store

        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
        self._store = open_store(self.rank, world, timeout)

    def attend(self, name: str, config: RunConfig, command: list[str]) -> Document | None:
        """See :func:`grace_bench.workers.rendezvous.attend`."""
        from grace_bench.workers.rendezvous import attend

        self.done = (0, 0)

        def progress(*done: int) -> None:
            self.done = (done[0], done[1])

        return attend(self._store, name, config, self.rank, on_progress=progress, command=command)

    def progress(self) -> tuple[int, int]:
        """Steps done, and steps in all."""
        return self.done


class Cluster:
    """A Ray cluster; its :meth:`launch` is a :class:`grace_bench.workers.local.Launcher`.

    Args:
        address: of the cluster; "auto" finds the one of this machine, or RAY_ADDRESS.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigurationError: there is no such cluster.
    """

    def __init__(self, address: str = "auto"):
        self.ray = need("ray", extra="ray")
        try:
            self.ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        except ConnectionError as error:
            raise ConfigurationError(
                "there is no Ray cluster here: start one (ray start --head) or set RAY_ADDRESS"
            ) from error

    def check(self, configs: Sequence[RunConfig]) -> None:
        """Checks that the cluster can run all of them.

        Raises:
            ConfigurationError: a link, which only workers of one's own can have, or more workers than it has cores for.
        """
        cores = self.ray.cluster_resources().get("CPU", 0)
        for config in configs:
            if config.network.shaped:
                raise ConfigurationError(
                    f"--link {config.link} is for workers on one machine; a cluster's network cannot be shaped"
                )
            if config.workers * config.threads > cores:
                raise ConfigurationError(
                    f"{config.workers} workers of {config.threads} threads need more cores than the cluster's {cores:g}; "
                    "set --workers or --threads"
                )

    def launch(
        self, configs: Sequence[RunConfig], *, on_progress: Callable[[int, int], None], command: list[str]
    ) -> Generator[Document, None, None]:
        """Trains; a run that fails takes its workers with it."""
        workers: list[Any] = []
        try:
            for index, config in enumerate(configs):
                workers = workers or self._start(config)
                running = [worker.attend.remote(f"run{index}", config, command) for worker in workers]
                try:
                    document: Document = self._wait(workers[0], running, on_progress)
                except self.ray.exceptions.RayError as error:  # a worker has died
                    document = failure_of(config, f"{config.method}: {error}", command)
                if isinstance(document, Failure):
                    self._stop(workers)
                    workers = []
                yield document
        finally:
            self._stop(workers)

    def _start(self, config: RunConfig) -> list[Any]:
        environment = {"OMP_NUM_THREADS": str(config.threads), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        actor = self.ray.remote(RayWorker).options(
            num_cpus=config.threads, scheduling_strategy="SPREAD", max_concurrency=2,
            runtime_env={"env_vars": environment},
        )  # fmt: skip
        workers = [actor.remote(rank) for rank in range(config.workers)]
        address, port = self.ray.get(workers[0].find_address.remote())
        self.ray.get([worker.join.remote(address, port, config.workers, config.timeout) for worker in workers])
        return workers

    def _wait(self, first: Any, running: list[Any], on_progress: Callable[[int, int], None]) -> Any:
        left = running
        while left:
            _, left = self.ray.wait(left, num_returns=len(left), timeout=_POLL_SECONDS)
            if (seen := self.ray.get(first.progress.remote()))[1]:
                on_progress(*seen)
        return self.ray.get(running)[0]

    def _stop(self, workers: list[Any]) -> None:
        for worker in workers:
            with contextlib.suppress(Exception):  # it may be gone
                self.ray.kill(worker)
