"""Runs in workers that somebody else has started: torchrun or Slurm, on any number of machines.

Rank 0 is in charge: it decides what runs, and writes the results. The others do as it says.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from grace.bench.config import RunConfig
from grace.bench.rendezvous import attend, open_store
from grace.bench.results import Document, decode_as, encode
from grace.bench.worker import Job
from grace.errors import ConfigurationError

_FIRST_PORT, _PORTS = 20000, 20000  # of which a Slurm job takes the one of its number
_BYE_SECONDS = 10.0
_PATIENCE = datetime.timedelta(days=30)  # that a worker waits for what is next: rank 0 ends it, not the clock


@dataclass(frozen=True, slots=True)
class Place:
    """Which worker this process is, and where rank 0 is."""

    rank: int
    world: int
    address: str
    port: int


def find_place(environment: Mapping[str, str] | None = None) -> Place | None:
    """The place of this process, if torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) or a Slurm step (SLURM_PROCID,
    SLURM_STEP_NUM_TASKS) has started it; None if it stands alone.

    Raises:
        ConfigurationError: they say only half of it.
    """
    env = os.environ if environment is None else environment
    if "RANK" in env and "WORLD_SIZE" in env:
        absent = [key for key in ("MASTER_ADDR", "MASTER_PORT") if key not in env]
        if absent:
            raise ConfigurationError(
                f"RANK and WORLD_SIZE are set, {' and '.join(absent)} not: set them, or use torchrun"
            )
        return Place(int(env["RANK"]), int(env["WORLD_SIZE"]), env["MASTER_ADDR"], int(env["MASTER_PORT"]))
    if int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
        address = env.get("MASTER_ADDR") or _find_first_host(nodes)
        port = int(env.get("MASTER_PORT") or _FIRST_PORT + int(env.get("SLURM_JOB_ID", "0")) % _PORTS)
        return Place(int(env["SLURM_PROCID"]), int(env["SLURM_STEP_NUM_TASKS"]), address, port)
    return None


def _find_first_host(nodes: str) -> str:
    """The first of ``node[01-04]``: Slurm's own tool knows."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"cannot tell the first machine of {nodes!r} ({error}); set MASTER_ADDR") from error
    return done.stdout.split()[0]


class Company:
    """The workers that were started together; on rank 0 its :meth:`lead` is a :class:`grace.bench.launch.Launcher`."""

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
                    f"--link {config.link} is for workers on one machine; here, the network is what it is"
                )

    def lead(
        self, configs: Sequence[RunConfig], *, on_progress: Callable[[int, int], None], command: list[str]
    ) -> Generator[Document, None, None]:
        """Rank 0: trains."""
        for config in configs:
            self._say(Job([config], command))
            document = self._attend(config, on_progress, command)
            assert document is not None
            yield document

    def follow(self) -> None:
        """Other ranks: do what rank 0 says until it has said that this was all."""
        while (job := self._hear()).configs:
            self._attend(job.configs[0], lambda done, steps: None, job.command)
        self._store.set(f"bye/{self.place.rank}", "")

    @contextlib.contextmanager
    def end_together(self) -> Iterator[None]:
        """On rank 0, around all that it does: whatever ends it, the others hear of it."""
        try:
            yield
        finally:
            self._say(Job([], []))
            others = [f"bye/{rank}" for rank in range(1, self.place.world)]
            with contextlib.suppress(RuntimeError):  # this process may have the store: the others must have read it
                self._store.wait(others, datetime.timedelta(seconds=_BYE_SECONDS))

    def _attend(
        self, config: RunConfig, on_progress: Callable[[int, int], None], command: list[str]
    ) -> Document | None:
        name = f"run{self._next}"
        return attend(self._store, name, config, self.place.rank, on_progress=on_progress, command=command)

    def _say(self, job: Job) -> None:
        self._next += 1
        self._store.set(f"next/{self._next}", encode(job))

    def _hear(self) -> Job:
        self._next += 1
        key = f"next/{self._next}"
        self._store.wait([key], _PATIENCE)
        job: Job = decode_as(self._store.get(key), Job)
        return job
