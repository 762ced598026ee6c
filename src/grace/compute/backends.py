"""Which backend computes: plain torch, or something faster on the tensors' device.

``GRACE_KERNELS`` forces one: ``reference`` (plain torch on every device), ``native`` (on the CPU the best instruction set of
this processor), or ``native-base``, ``native-avx2``, ``native-avx512``. Without it the native kernels are used where they were
built. ``triton`` adds the Triton kernels: on CUDA, and under Triton's interpreter (``TRITON_INTERPRET=1``) on the CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from grace.compute import devices, native
from grace.errors import ConfigurationError, KernelsWarning, out_of_range, stack_level

CHOICES: Final = ("reference", "native", *(f"native-{isa}" for isa in native.ISAS), "triton")
VARIABLE: Final = "GRACE_KERNELS"
INTERPRETER: Final = "TRITON_INTERPRET"
SLOWER: Final = "Grace uses its slower torch kernels: "


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """What runs.

    name: "reference" or "native-ISA", what runs on the CPU. why: the reason for it.
    modules: the module of a family that serves a type of device; the reference serves those that are missing.
    functions: the C functions of the instruction set; None for the reference.
    chosen: what each operation runs, filled by ``grace.compute.dispatch``.
    """

    name: str
    why: str
    modules: Mapping[str, str]
    functions: native.Functions | None = None
    chosen: dict[Any, Callable[..., Any]] = field(default_factory=dict)


UNDECIDED: Final = Backend("", "nothing has asked for a kernel yet", {})
current = UNDECIDED


def backend() -> Backend:
    """What runs; the first call chooses it.

    Raises:
        ConfigurationError: ``GRACE_KERNELS`` asks for something unknown, not built, or beyond this processor.
    """
    return current if current is not UNDECIDED else _use(_choose(os.environ.get(VARIABLE) or None))


def active() -> tuple[str, str]:
    """(what runs on the CPU: "reference" or "native-ISA", why)"""
    now = backend()
    return now.name, now.why


def runs_triton(device: torch.device) -> bool:
    """Whether Triton's kernels serve this device."""
    return backend().modules.get(device.type) == "triton"


def available() -> list[str]:
    """What could be chosen here."""
    return ["reference", *(f"native-{isa}" for isa in native.isas())]


def slow_note() -> str | None:
    """What to say if the native kernels are missing and no others were asked for; None if all is well."""
    return None if os.environ.get(VARIABLE) or native.isas() else SLOWER + native.library()


@contextlib.contextmanager
def using(choice: str) -> Iterator[None]:
    """A context that uses another backend, in all threads. For tests and benchmarks.

    Raises:
        ConfigurationError: it is unknown, was not built, or the processor cannot run it.
    """
    before = current
    try:
        _use(_choose(choice))
        yield
    finally:
        _use(before)


def _use(chosen: Backend) -> Backend:
    global current
    if chosen.functions is not None:
        native.c = chosen.functions
    current = chosen
    return chosen


def _choose(choice: str | None) -> Backend:
    if choice is not None and choice not in CHOICES:
        raise out_of_range("kernels", VARIABLE, choice, ", ".join(CHOICES))
    if choice == "reference":
        return Backend("reference", f"asked for ({VARIABLE})", {})
    if choice == "triton":
        return _triton()
    isas = native.isas()
    if not isas:
        why = native.library()
        if choice is not None:
            raise ConfigurationError(f"{VARIABLE}={choice}, but {why}")
        warnings.warn(SLOWER + why, KernelsWarning, stacklevel=stack_level())
        return Backend("reference", why, {})
    if choice is None or choice == "native":
        isa, why = isas[-1], "the best that this processor has"
    else:
        isa, why = choice.removeprefix("native-"), f"asked for ({VARIABLE})"
        if isa not in isas:
            raise ConfigurationError(f"{VARIABLE}={choice}, but this processor has no more than {isas[-1]}")
    return Backend(f"native-{isa}", why, {"cpu": "native"}, native.Functions(isa))


def _triton() -> Backend:
    """The Triton kernels where they can run; elsewhere what would run without them."""
    if importlib.util.find_spec("triton") is None:
        raise ConfigurationError(
            f"{VARIABLE}=triton, but the package triton is not installed; install the release that this torch names, "
            "such as triton==3.7.1 for torch 2.13"
        )
    if os.environ.get(INTERPRETER) == "1":
        return Backend("triton", f"asked for ({VARIABLE}), in Triton's interpreter ({INTERPRETER})", {"cpu": "triton"})
    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"{VARIABLE}=triton, but there is no CUDA device; to run Triton's kernels on the CPU, slowly, set {INTERPRETER}=1"
        )
    other = _choose(None)
    if (problem := devices.find_triton_problem()) is not None:
        warnings.warn(
            f"{VARIABLE}=triton, but {problem}; CUDA tensors get plain torch operations, which are slower",
            KernelsWarning,
            stacklevel=stack_level(),
        )
        return dataclasses.replace(other, why=f"{other.why}; on CUDA plain torch: {problem}", chosen={})
    return dataclasses.replace(other, modules={**other.modules, "cuda": "triton"}, chosen={})
