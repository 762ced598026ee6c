"""Shared parts of all toolkits: who takes part, and collectives on torch tensors."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, Broadcast, Collective
from grace.errors import ConfigurationError
from grace.transports.base import Transport
from grace.transports.checked import Checked
from grace.transports.choose import choose
from grace.transports.launchers import find_mpi_place
from grace_dl import network

Op: TypeAlias = Literal["Average", "Sum", "Min", "Max", "Product", "Adasum"]
Average: Op = "Average"
Sum: Op = "Sum"
Min: Op = "Min"
Max: Op = "Max"
Product: Op = "Product"
Adasum: Op = "Adasum"
_initialized = False
__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "gloo_built", "gloo_enabled", "init", "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "rocm_built", "shutdown", "size",
]  # fmt: skip


# ---- who takes part -----------------------------------------------------------------------------------------------------
def init(*args: Any, **knobs: Any) -> None:
    """Meets the other workers by way of the launcher: mpirun, torchrun, Slurm; or starts alone."""
    global _initialized
    network.shared_transport()
    _initialized = True


def shutdown() -> None:
    """Leaves the job."""
    global _initialized
    _initialized = False
    network.leave()


def is_initialized() -> bool:
    """True if :func:`init` has been called."""
    return _initialized


def transport() -> Transport:
    """Between the workers.

    Raises:
        ValueError: as Horovod: ``init`` has not been called.
    """
    check_start()
    return network.shared_transport()


def check_start() -> None:
    """Refuses to go on before ``hvd.init()``, of the stand-in or of Horovod itself.

    Raises:
        ValueError: as Horovod.
    """
    if not _initialized and choose("auto").name != "horovod":
        raise ValueError("Horovod has not been initialized; use hvd.init().")


def rank() -> int:
    """Rank of this worker in the job."""
    return transport().rank


def size() -> int:
    """Number of workers."""
    return transport().world


def local_rank() -> int:
    """Rank of this worker among those of its machine."""
    transport()
    place = find_mpi_place()
    if place is not None and place.local_rank is not None:
        return place.local_rank
    return _read("LOCAL_RANK", "SLURM_LOCALID", default=0)


def local_size() -> int:
    """Number of workers of this machine, according to the launcher; all, if it does not say."""
    return _read(
        "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", default=size()
    )


def cross_rank() -> int:
    """Number of this machine, if all have equally many workers."""
    return rank() // local_size()


def cross_size() -> int:
    """Number of machines, if all have equally many workers."""
    return -(-size() // local_size())


def is_homogeneous() -> bool:
    """True if all machines have equally many workers, as far as this one can tell."""
    return size() % local_size() == 0


def _read(*names: str, default: int) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), default)


def gloo_built(*args: Any, **knobs: Any) -> bool:
    """True: what works over gloo works."""
    return True


def nccl_built(*args: Any, **knobs: Any) -> int:
    """0, meaning no, for everything that Horovod can be built with and this cannot."""
    return 0


gloo_enabled = gloo_built
ccl_built = ddl_built = rocm_built = cuda_built = mpi_built = mpi_enabled = mpi_threads_supported = nccl_built


# ---- collectives ----------------------------------------------------------------------------------------------------------
def run(op: Collective) -> Tensor:
    """The answer of a collective; before it starts, all ranks compare what they ask for.

    Raises:
        RoundMismatch: ranks ask for different things, or in another order.
    """
    return Checked(transport()).run(op)


def allreduce(tensor: Tensor, average: bool | None = None, op: Any = None) -> Tensor:
    """The mean over the workers, or what ``op`` says, in a new tensor.

    Raises:
        ConfigurationError: an ``op`` that does not exist.
    """
    kind = op or (Sum if average is False else Average)
    flat = tensor.detach().reshape(max(tensor.shape, (1,)))
    if kind == Average and not tensor.is_floating_point():
        total = run(AllReduce(flat, "sum"))
        return total.div(size(), rounding_mode="trunc").to(tensor.dtype).view(tensor.shape)
    if kind == Min:
        return -allreduce(-tensor, op=Max)
    kinds: dict[Any, Literal["sum", "mean", "max"]] = {Average: "mean", Sum: "sum", Max: "max"}
    if kind not in kinds:
        raise ConfigurationError(f"op={kind}: Grace's stand-in for Horovod has Average, Sum, Min and Max")
    return run(AllReduce(flat, kinds[kind])).view(tensor.shape)


def allgather(tensor: Tensor) -> Tensor:
    """Everyone's tensors one after the other; their first dimensions may differ."""
    x = tensor.detach().reshape(max(tensor.shape, (1,))).contiguous()
    sizes = run(AllGather(torch.tensor([x.shape[0]], dtype=torch.int64, device="cpu"))).view(-1).tolist()
    padded = x.new_zeros(max(sizes), *x.shape[1:])
    padded[: x.shape[0]] = x
    return torch.cat([row[:count] for row, count in zip(run(AllGather(padded)), sizes, strict=True)])


def broadcast(tensor: Tensor, root_rank: int) -> Tensor:
    """The root's tensor, in a new one."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return run(Broadcast(raw, root_rank)).view(tensor.dtype).view(tensor.shape)


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None, **knobs: Any) -> Any:
    """The root's object, pickled. Only what the job's own workers sent is unpickled."""
    pickled = _pickle(obj) if rank() == root_rank else torch.zeros(0, dtype=torch.uint8, device="cpu")
    count = int(broadcast(torch.tensor([pickled.numel()], dtype=torch.int64, device="cpu"), root_rank))
    raw = pickled if rank() == root_rank else torch.zeros(count, dtype=torch.uint8, device="cpu")
    return _unpickle(broadcast(raw, root_rank))


def allgather_object(obj: Any, name: str | None = None, **knobs: Any) -> list[Any]:
    """Everyone's objects, pickled."""
    pickled = _pickle(obj)
    sizes = run(AllGather(torch.tensor([pickled.numel()], dtype=torch.int64, device="cpu"))).view(-1).tolist()
    return [_unpickle(raw) for raw in allgather(pickled).split_with_sizes(sizes)]


def _pickle(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _unpickle(raw: Tensor) -> Any:
    return pickle.load(io.BytesIO(raw.numpy().tobytes()))


class Compression:
    """The legal values of Horovod's own ``compression=``."""

    none = "none"
    fp16 = "fp16"


def find_method(compression: Any) -> Any:
    """The Grace method that ``compression=`` names.

    Raises:
        ConfigurationError: it names none.
    """
    if compression in (None, Compression.none, Compression.fp16):
        return compression or "none"
    if (method := getattr(compression, "method", None)) is not None:  # of grace.horovod.compression
        return method
    raise ConfigurationError(
        f"compression={compression!r}; legal: hvd.Compression.none and .fp16; for others give grace="
    )
