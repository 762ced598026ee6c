"""Reads what launchers say about this process in its environment: torchrun, Slurm, and those of MPI."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from grace.errors import ConfigurationError

_FIRST_PORT, _PORTS = 20000, 20000  # a Slurm job takes the port of its number
_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_MPI_WORLDS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")  # PMIx tells a process its rank only
_MPI_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
LOCAL_WORLD = "GRACE_LOCAL_WORLD_SIZE"
LOCAL_WORLDS = (
    LOCAL_WORLD,
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)
_local_world: ContextVar[int | None] = ContextVar("local_world_size", default=None)


@dataclass(frozen=True, slots=True)
class Place:
    """Place of this process among the workers, and the address of rank 0."""

    rank: int
    world: int
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class MPIPlace:
    """Place of this process among the workers, according to an MPI launcher. ``variable``: the variable that says so;
    ``world``: None if it does not say how many there are; ``local_rank``: the rank on this machine, None if it does not say.
    """

    variable: str
    rank: int
    world: int | None
    local_rank: int | None


def find_place(environment: Mapping[str, str] | None = None) -> Place | None:
    """The place of this process, if torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) or a Slurm step (SLURM_PROCID,
    SLURM_STEP_NUM_TASKS) has started it; None if it stands alone.

    Raises:
        ConfigurationError: they give only half of it.
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
    """The first of ``node[01-04]``, from Slurm's own tool."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"cannot tell the first machine of {nodes!r} ({error}); set MASTER_ADDR") from error
    return done.stdout.split()[0]


def find_mpi_place(environment: Mapping[str, str] | None = None) -> MPIPlace | None:
    """The place of this process, if mpirun, mpiexec or srun has started it as one of MPI's; None otherwise. Workers of a
    torchrun that mpirun has started are torchrun's.
    """
    env = os.environ if environment is None else environment
    variable = next((name for name in _MPI_RANKS if name in env), None)
    if variable is None or "TORCHELASTIC_RUN_ID" in env:
        return None
    world = next((int(env[name]) for name in _MPI_WORLDS if name in env), None)
    local_rank = next((int(env[name]) for name in _MPI_LOCAL_RANKS if name in env), None)
    return MPIPlace(variable, int(env[variable]), world, local_rank)


@dataclass(frozen=True, slots=True)
class LocalWorld:
    """Number of workers of a machine. said_by: the option or the variable that says so."""

    workers: int
    said_by: str


@contextlib.contextmanager
def local_world(workers: int | None) -> Iterator[None]:
    """Within it a machine has so many workers, whatever the environment says; None: what the environment says."""
    token = _local_world.set(workers)
    try:
        yield
    finally:
        _local_world.reset(token)


def find_local_world() -> LocalWorld | None:
    """Number of workers of this machine, as :func:`local_world` or the environment variable GRACE_LOCAL_WORLD_SIZE says; None
    if neither does.

    Raises:
        ConfigurationError: the variable is no whole number >= 1.
    """
    if (workers := _local_world.get()) is not None:
        return LocalWorld(workers, "local_world_size")
    text = os.environ.get(LOCAL_WORLD)
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"the environment variable {LOCAL_WORLD}={text!r}; legal: a whole number >= 1")
    return LocalWorld(int(text), LOCAL_WORLD)


def find_local_workers() -> int | None:
    """The same, or what torchrun, mpiexec or Slurm says.

    Raises:
        ConfigurationError: as :func:`find_local_world`.
    """
    if (local := find_local_world()) is not None:
        return local.workers
    return next((int(os.environ[name]) for name in LOCAL_WORLDS if os.environ.get(name, "").isdigit()), None)
