"""Choice of the transport that a job runs over: ``grace.transport("auto")`` finds out how the script was launched."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from dataclasses import dataclass

import torch.distributed as dist

from grace.errors import ConfigurationError, unknown
from grace.transports.alone import Alone
from grace.transports.base import Kept, Transport, describe
from grace.transports.candidates import TRANSPORTS, candidates, register_transport
from grace.transports.launchers import find_mpi_place, find_place
from grace.transports.meeting import find_jax, init_process_group
from grace.transports.mpi import MPITransport, find_why_no_mpi
from grace.transports.torch_distributed import TorchDistributed

VARIABLE = "GRACE_TRANSPORT"
_log = logging.getLogger("grace")


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """A transport by name, and why it was chosen."""

    name: str
    why: str


def transport(spec: str | Transport = "auto") -> Transport:
    """The transport of this job; all ranks call it alike.

    Args:
        spec: a transport, which is passed through, or a name: "gloo" or "nccl" (``torch.distributed``, initialized if need
            be), "torch" (whatever it was initialized with), "mpi", "horovod", "alone" (one worker), one that an installed
            package has, or "auto".

    Returns:
        With "auto" the one that the environment variable GRACE_TRANSPORT names, or the first that fits: Horovod, where the
        script has initialized it; ``torch.distributed``, where it is initialized, with a process group of its own; MPI under
        ``mpirun``, ``mpiexec`` and ``srun --mpi``, or gloo where mpi4py is not installed; gloo under torchrun, in a job of
        several JAX processes, and in a Slurm step; one of an installed package, which says so; and otherwise one worker alone.
        The choice is logged, and handles say it (``handle.transport``).

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


def _carry_out(choice: TransportChoice) -> Transport:
    made = TRANSPORTS.find(choice.name).make()
    if hasattr(made, "why"):
        made.why = choice.why
    _log.info("transport %s, rank %d of %d", describe(made), made.rank, made.world)
    return made


def choose(spec: str = "auto") -> TransportChoice:
    """Name of the transport that :func:`transport` would give here, and why. Nothing is sent.

    Raises:
        ConfigurationError: an unknown name.
    """
    if (choice := _choose_by_name(spec)) is not None:
        return choice
    for name, candidate in candidates():
        if (why := candidate.running()) is not None:
            return TransportChoice(name, why)
    for name, candidate in candidates():
        if (why := candidate.launched()) is not None:
            return TransportChoice(name, why)
    return TransportChoice("alone", "nothing says that there are other workers")


def _choose_by_name(spec: str) -> TransportChoice | None:
    """The transport that an argument or the variable names; None if neither does."""
    if spec != "auto":
        if spec not in TRANSPORTS.in_order():
            raise unknown("transport", spec, _names())
        return TransportChoice(spec, "asked for")
    named = os.environ.get(VARIABLE) or "auto"
    if named == "auto":
        return None
    if named not in TRANSPORTS.in_order():
        raise ConfigurationError(f"the environment variable {VARIABLE}={named!r}; legal: {', '.join(_names())}")
    return TransportChoice(named, f"{VARIABLE} asks for it")


def _names() -> tuple[str, ...]:
    return ("auto", *TRANSPORTS.in_order())


def transport_between(group: dist.ProcessGroup | None, spec: str | Transport | None = "auto") -> Transport:
    """As :func:`transport_for_handle`, for a door that has ``group=`` and ``transport=``: between the ranks of the group, in a
    process group of its own, or else what ``spec`` says.

    Raises:
        ConfigurationError: both are given. As :func:`transport`.
    """
    if group is None:
        return transport_for_handle(spec or "auto")
    if spec not in (None, "auto"):
        raise ConfigurationError("group= and transport= both say which ranks take part; give one of them")
    return TorchDistributed.of_same_ranks(group)


def transport_beside(group: dist.ProcessGroup | None, spec: str | Transport | None = "auto") -> Transport:
    """The transport for a model that has a process group: the one asked for, here or by GRACE_TRANSPORT; else one beside the
    group.

    Raises:
        ConfigurationError: as :func:`transport`.
    """
    if not isinstance(spec, str | None):
        return Kept(spec)
    choice = _choose_by_name(spec or "auto")
    if choice is not None and choice.name not in ("torch", str(dist.get_backend(group))):
        return _carry_out(choice)
    made = TorchDistributed.of_same_ranks(group)
    made.why = "the model's process group" if choice is None else choice.why
    return made


# ---- Grace's own, in the order in which they are asked --------------------------------------------------------------
def _is_horovod_initialized() -> str | None:
    initialized = any(
        (module := sys.modules.get(name)) is not None
        and not hasattr(module, "stands_in")  # for Horovod, over one of the transports here: grace_dl.stand_in()
        and bool(module.is_initialized())
        for name in ("horovod.torch", "horovod.tensorflow")
    )
    return "Horovod is initialized" if initialized else None


@register_transport("horovod", running=_is_horovod_initialized)
def _make_horovod() -> Transport:
    made: Transport = importlib.import_module(
        "grace.transports.horovod"
    ).HorovodTransport()  # imports Horovod's torch side
    return made


def _is_under_mpi() -> str | None:
    mpi = find_mpi_place()
    return f"{mpi.variable} is set" if mpi is not None and find_why_no_mpi() is None else None


@register_transport("mpi", launched=_is_under_mpi)
def _make_mpi() -> Transport:
    return MPITransport()


def _is_initialized(backend: str | None = None) -> str | None:
    initialized = dist.is_available() and dist.is_initialized() and backend in (None, _default_backend())
    return "torch.distributed is initialized" if initialized else None


def _is_launched() -> str | None:
    """The reason why gloo fits where nothing is initialized: the workers can find each other."""
    if (mpi := find_mpi_place()) is not None:
        return f"{mpi.variable} is set, and {find_why_no_mpi()}"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return "RANK and WORLD_SIZE are set"
    if find_jax() is not None:
        return "this is one of several JAX processes"
    return "SLURM_PROCID is set" if find_place() is not None else None


@register_transport("gloo", running=functools.partial(_is_initialized, "gloo"), launched=_is_launched)
def _make_gloo() -> Transport:
    return _over_torch("gloo")


@register_transport("nccl", running=functools.partial(_is_initialized, "nccl"))
def _make_nccl() -> Transport:
    return _over_torch("nccl")


@register_transport("torch", running=_is_initialized)
def _make_torch() -> Transport:
    """Over whatever backend ``torch.distributed`` was initialized with."""
    return _over_torch("")


register_transport("alone")(Alone)


def _over_torch(backend: str) -> Transport:
    if not dist.is_available():
        raise ConfigurationError(
            f"the transport {backend or 'torch'!r} needs a torch that is built with torch.distributed"
        )
    if not dist.is_initialized():
        if not backend:
            raise ConfigurationError(
                "the transport 'torch' is what torch.distributed was initialized with, and it was not; call "
                "grace.init_process_group(backend) first, or name the backend: 'gloo', 'nccl'"
            )
        init_process_group(backend)
    elif backend not in _default_backend():
        raise ConfigurationError(
            f"the transport {backend!r} is wanted, by an argument or by {VARIABLE}, and torch.distributed is initialized with "
            f"{_default_backend()!r}; leave out the transport, or initialize torch.distributed with {backend!r}"
        )
    return TorchDistributed.of_same_ranks()


def _default_backend() -> str:
    return str(dist.get_backend())
