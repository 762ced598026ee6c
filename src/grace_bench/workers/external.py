"""Runs in workers that somebody else has started: torchrun or Slurm, on any number of machines.

Rank 0 is in charge: it decides what runs, and writes the results. The others do what it says.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Generator, Iterator, Sequence

from grace.errors import ConfigurationError
from grace.transports.launchers import Place
from grace_bench.runs.config import RunConfig
from grace_bench.runs.results import Document, decode_as, encode
from grace_bench.workers.rendezvous import attend, open_store
from grace_bench.workers.worker import Job

_BYE_SECONDS = 10.0
_PATIENCE = datetime.timedelta(days=30)  # how long a worker waits for the next run: rank 0 ends it, not the clock


class ExternalWorkers:
    """The workers that were started together. On rank 0 :meth:`run_rank0` is a :class:`grace_bench.workers.local.Launcher`."""

    def __init__(self, place: Place, timeout: float):
        os.environ.update(MASTER_ADDR=place.address, MASTER_PORT=str(place.port))
        self.place, self._store = place, open_store(place.rank, place.world, timeout)
        self._next = 0

    def check(self, configs: Sequence[RunConfig]) -> None:
        """Checks that these workers can run all of them.

        Raises:
            ConfigurationError: another number of workers, or a link, which only workers of one's own can have.
        """
        for config in configs:
            if config.workers != self.place.world:
                raise ConfigurationError(
                    f"this job has {self.place.world} workers, and --workers asks for {config.workers}; leave it out"
                )
            if config.network.shaped:
                raise ConfigurationError(
                    f"--link {config.link} is for workers on one machine; the network of this job cannot be shaped"
                )

    def run_rank0(
        self, configs: Sequence[RunConfig], *, on_progress: Callable[[int, int], None], command: list[str]
    ) -> Generator[Document, None, None]:
        """Rank 0: trains."""
        for config in configs:
            self._send(Job([config], command))
            document = self._attend(config, on_progress, command)
            assert document is not None
            yield document

    def run_others(self) -> None:
        """Other ranks: do what rank 0 says until it has said that this was all."""
        while (job := self._receive()).configs:
            self._attend(job.configs[0], lambda done, steps: None, job.command)
        self._store.set(f"bye/{self.place.rank}", "")

    @contextlib.contextmanager
    def end_together(self) -> Iterator[None]:
        """On rank 0, around all that it does: however it ends, the others are told."""
        try:
            yield
        finally:
            self._send(Job([], []))
            others = [f"bye/{rank}" for rank in range(1, self.place.world)]
            with contextlib.suppress(RuntimeError):  # this process may have the store: the others must have read it
                self._store.wait(others, datetime.timedelta(seconds=_BYE_SECONDS))

    def _attend(
        self, config: RunConfig, on_progress: Callable[[int, int], None], command: list[str]
    ) -> Document | None:
        name = f"run{self._next}"
        return attend(self._store, name, config, self.place.rank, on_progress=on_progress, command=command)

    def _send(self, job: Job) -> None:
        self._next += 1
        self._store.set(f"next/{self._next}", encode(job))

    def _receive(self) -> Job:
        self._next += 1
        key = f"next/{self._next}"
        self._store.wait([key], _PATIENCE)
        job: Job = decode_as(self._store.get(key), Job)
        return job
