"""Which transport a job runs over: ``grace.transport("auto")`` finds out how the script was launched."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from dataclasses import dataclass

import torch.distributed as dist

from grace.errors import ConfigurationError, unknown
from grace.transports.alone import Alone
from grace.transports.base import Kept, Transport, describe
from grace.transports.launchers import find_mpi_place, find_place
from grace.transports.meeting import find_jax, init_process_group
from grace.transports.mpi import MPITransport, find_why_no_mpi
from grace.transports.torch_distributed import TorchDistributed

VARIABLE = "GRACE_TRANSPORT"
NAMES = ("auto", "gloo", "nccl", "mpi", "horovod", "alone")
_log = logging.getLogger("grace")


@dataclass(frozen=True, slots=True)
class Choice:
    """A transport by name, and why it was chosen."""

    name: str
    why: str


def transport(spec: str | Transport = "auto") -> Transport:
    """The transport of this job; all ranks call it alike.

    Args:
        spec: a transport, which is passed through, or a name: "gloo" or "nccl" (``torch.distributed``, initialized if need
            be), "mpi", "horovod", "alone" (one worker), or "auto".

    Returns:
        With "auto" the one that the environment variable GRACE_TRANSPORT names, or the first that fits: Horovod, where the
        script has initialized it; ``torch.distributed``, where it is initialized, with a process group of its own; MPI under
        ``mpirun``, ``mpiexec`` and ``srun --mpi``, or gloo where mpi4py is not installed; gloo under torchrun, in a job of
        several JAX processes, and in a Slurm step; and otherwise one worker alone. The choice is logged, and handles say it
        (``handle.transport``).

    Raises:
        ConfigurationError: an unknown name, a missing package, or a launcher that says only half of what is needed.

    Example:
        >>> import grace
        >>> alone = grace.transport("alone")
        >>> alone.rank, alone.world
        (0, 1)
    """
    if not isinstance(spec, str):
        return spec
    return _carry_out(choose(spec))


def transport_for_handle(spec: str | Transport = "auto") -> Transport:
    """As :func:`transport`, for a handle that closes it when it leaves: a transport of the user's own stays open then.

    Raises:
        ConfigurationError: as :func:`transport`.
    """
    return transport(spec) if isinstance(spec, str) else Kept(spec)


def _carry_out(choice: Choice) -> Transport:
    made = _build(choice)
    if hasattr(made, "why"):
        made.why = choice.why
    _log.info("transport %s, rank %d of %d", describe(made), made.rank, made.world)
    return made


def choose(spec: str = "auto") -> Choice:
    """Which transport :func:`transport` would give here, and why. Nothing is sent.

    Raises:
        ConfigurationError: an unknown name.
    """
    if (choice := _choose_by_name(spec)) is not None:
        return choice
    if _horovod_is_initialized():
        return Choice("horovod", "Horovod is initialized")
    if dist.is_available() and dist.is_initialized():
        return Choice(_default_backend(), "torch.distributed is initialized")
    if (mpi := find_mpi_place()) is not None:
        absent = find_why_no_mpi()
        if absent is None:
            return Choice("mpi", f"{mpi.variable} is set")
        return Choice("gloo", f"{mpi.variable} is set, and {absent}")
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return Choice("gloo", "RANK and WORLD_SIZE are set")
    if find_jax() is not None:
        return Choice("gloo", "this is one of several JAX processes")
    if find_place() is not None:
        return Choice("gloo", "SLURM_PROCID is set")
    return Choice("alone", "nothing says that there are other workers")


def _choose_by_name(spec: str) -> Choice | None:
    """The transport that an argument or the variable names; None if neither does."""
    if spec not in NAMES:
        raise unknown("transport", spec, NAMES)
    if spec != "auto":
        return Choice(spec, "asked for")
    named = os.environ.get(VARIABLE) or "auto"
    if named not in NAMES:
        raise ConfigurationError(f"the environment variable {VARIABLE}={named!r}; legal: {', '.join(NAMES)}")
    return None if named == "auto" else Choice(named, f"{VARIABLE} asks for it")


def transport_beside(group: dist.ProcessGroup | None, spec: str | Transport | None = "auto") -> Transport:
    """The transport for a model that has a process group: the one asked for, here or by GRACE_TRANSPORT; else one beside the
    group.

    Raises:
        ConfigurationError: as :func:`transport`.
    """
    if not isinstance(spec, str | None):
        return Kept(spec)
    choice = _choose_by_name(spec or "auto")
    if choice is not None and choice.name != str(dist.get_backend(group)):
        return _carry_out(choice)
    made = TorchDistributed.beside(group)
    made.why = "the model's process group" if choice is None else choice.why
    return made


def _build(choice: Choice) -> Transport:
    if choice.name == "alone":
        return Alone()
    if choice.name == "mpi":
        return MPITransport()
    if choice.name == "horovod":  # imports Horovod's torch side
        made: Transport = importlib.import_module("grace.transports.horovod").HorovodTransport()
        return made
    if not dist.is_available():
        raise ConfigurationError(f"the transport {choice.name!r} needs a torch that is built with torch.distributed")
    if not dist.is_initialized():
        init_process_group(choice.name)
    elif choice.name not in _default_backend():
        raise ConfigurationError(
            f"the transport {choice.name!r} is wanted ({choice.why}), and torch.distributed is initialized with "
            f"{_default_backend()!r}; leave out the transport, or initialize torch.distributed with {choice.name!r}"
        )
    return TorchDistributed.beside()


def _default_backend() -> str:
    return str(dist.get_backend())


def _horovod_is_initialized() -> bool:
    return any(
        (module := sys.modules.get(name)) is not None
        and not hasattr(module, "stands_in")  # for Horovod, over one of the transports here: grace_dl.stand_in()
        and bool(module.is_initialized())
        for name in ("horovod.torch", "horovod.tensorflow")
    )
