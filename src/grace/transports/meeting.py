"""Meeting of the workers of ``torch.distributed``, whatever launched them.

The store of torchrun's agent outlives a restart of the workers, with the addresses of the dead ones: every attempt gets a
prefix of its own. A store that rank 0 keeps is new in every attempt, and gets none: launchers on several machines do not count
attempts alike.
"""

from __future__ import annotations

import datetime
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from grace.errors import ConfigurationError
from grace.transports.launchers import MPIPlace, find_mpi_place, find_place
from grace.transports.mpi import MPITransport, find_why_no_mpi
from grace.transports.torch_distributed import guard_exit, name_attempt

_HOST_BYTES = 256


def init_process_group(backend: str = "gloo", *, timeout: datetime.timedelta | None = None) -> None:
    """``torch.distributed.init_process_group`` for a worker of any launcher: torchrun (safe for restarts on one machine),
    ``mpirun`` or ``mpiexec``, Slurm's ``srun``, or one of several processes of ``jax.distributed``.

    Under MPI's launchers LOCAL_RANK is set as torchrun would, where it is not. With "nccl" it becomes the current CUDA device.

    Args:
        backend: of ``torch.distributed``: "gloo", "nccl".
        timeout: of the process group; None is torch's own.

    Raises:
        ConfigurationError: the launcher says only half of what is needed; the message says what to set. Or "nccl" without a
            CUDA device for each worker of this machine.

    Example:
        >>> grace.init_process_group()  # doctest: +SKIP
    """
    guard_exit()
    env = os.environ
    if backend == "nccl":
        _take_device()
    if prefix := name_attempt():
        rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
        kept = dist.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), world, is_master=False)
        store = dist.PrefixStore(prefix, kept)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
        return
    mpi = None if "RANK" in env and "WORLD_SIZE" in env else find_mpi_place()
    jax = find_jax()
    if mpi is not None:
        _meet_under_mpi(mpi, backend, timeout)
    elif jax is not None and "RANK" not in env:
        _meet(jax.process_index(), jax.process_count(), backend, timeout, _share_over_jax)
    elif "RANK" not in env and (place := find_place()) is not None:
        address = f"tcp://{place.address}:{place.port}"
        dist.init_process_group(backend, init_method=address, rank=place.rank, world_size=place.world, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)


def _take_device() -> None:
    """Makes the device of this worker's place on its machine the current one, where a launcher has said which place it is."""
    if not dist.is_nccl_available() or not torch.cuda.is_available():
        why = (
            "this torch is built without it"
            if not dist.is_nccl_available()
            else "this machine has none that torch finds"
        )
        raise ConfigurationError(f"the backend 'nccl' needs a CUDA device, and {why}; legal here: 'gloo'")
    count, text = torch.cuda.device_count(), os.environ.get("LOCAL_WORLD_SIZE", "1")
    workers = int(text) if text.isdecimal() else 1
    if workers > count:
        raise ConfigurationError(
            f"the backend 'nccl' refuses two workers on one device, and this machine has {workers} workers and {count} CUDA "
            f"devices; start at most {count} workers here, or use 'gloo', over which several share a device"
        )
    place = os.environ.get("LOCAL_RANK", "")
    if place.isdecimal() and int(place) < count:
        torch.cuda.set_device(int(place))


def find_jax() -> Any:
    """JAX, if this is one of several processes of ``jax.distributed``; JAX is not imported to find out."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized() or jax.process_count() == 1:
        return None
    return jax


def _meet_under_mpi(mpi: MPIPlace, backend: str, timeout: datetime.timedelta | None) -> None:
    if mpi.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(mpi.local_rank))
    absent = find_why_no_mpi()
    if absent is None:
        transport = MPITransport()
        seconds = 300.0 if timeout is None else timeout.total_seconds()
        _meet(
            transport.rank,
            transport.world,
            backend,
            timeout,
            lambda text: transport.all_gather_text(text, seconds=seconds)[0],
        )
        transport.close()
        return
    env = os.environ
    needed = [key for key in ("MASTER_ADDR", "MASTER_PORT") if key not in env]
    if needed or mpi.world is None:
        raise ConfigurationError(
            f"{mpi.variable} is set, and {absent}: without it the workers cannot find each other; install it, or set "
            f"{' and '.join([*needed, *(['WORLD_SIZE and RANK'] if mpi.world is None else [])])} for all of them"
        )
    address = f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    dist.init_process_group(backend, init_method=address, rank=mpi.rank, world_size=mpi.world, timeout=timeout)


def _meet(rank: int, world: int, backend: str, timeout: datetime.timedelta | None, share: Callable[[str], str]) -> None:
    store = find_store(rank, world, share)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)


def find_store(rank: int, world: int, share: Callable[[str], str]) -> dist.TCPStore:
    """Rank 0 keeps a store on a free port; ``share`` carries rank 0's text to all."""
    host = socket.gethostname()
    if rank == 0:
        store = dist.TCPStore("localhost", 0, world, is_master=True, wait_for_workers=False)
        share(f"{host}:{store.port}")
        return store
    keeper, _, port = share("").rpartition(":")
    return dist.TCPStore("localhost" if keeper == host else keeper, int(port), world, is_master=False)


def _share_over_jax(text: str) -> str:
    """Process 0's text."""
    import numpy as np
    from jax.experimental import multihost_utils

    encoded = np.frombuffer(text.encode().ljust(_HOST_BYTES), np.uint8)
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(encoded))).decode().rstrip()
