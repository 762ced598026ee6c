"""Choice of the backend that computes: plain torch, or something faster on the tensors' device.

``GRACE_KERNELS`` forces one: ``reference`` (plain torch on every device), ``native`` (on the CPU the best instruction set of
this processor, elsewhere plain torch), or ``native-base``, ``native-avx2``, ``native-avx512``. Without it the native kernels
are used where they were built, and on CUDA the Triton kernels where they can run, which is found out when the first CUDA
tensor comes. ``triton`` asks for these: on CUDA at once, and under Triton's interpreter (``TRITON_INTERPRET=1``) on the CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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
    """The backend that runs the kernels.

    name: "reference" or "native-ISA", what runs on the CPU. why: the reason for it.
    modules: the module of a family that serves a type of device; the reference serves those that are missing.
    functions: the C functions of the instruction set; None for the reference. tries_triton: whether CUDA tensors get Triton's
    kernels if these can run.
    chosen: what each operation runs, filled by ``grace.compute.dispatch``.
    """

    name: str
    why: str
    modules: Mapping[str, str]
    functions: native.Functions | None = None
    tries_triton: bool = False
    chosen: dict[Any, Callable[..., Any]] = field(default_factory=dict)

    def module_of(self, device_type: str) -> str | None:
        """The module that serves this type of device; None: the reference does."""
        if device_type == "cuda" and self.tries_triton:
            return "triton" if _find_triton() else None
        return self.modules.get(device_type)


UNDECIDED: Final = Backend("", "nothing has asked for a kernel yet", {})
current = UNDECIDED


def backend() -> Backend:
    """The backend that runs; the first call chooses it.

    Raises:
        ConfigurationError: ``GRACE_KERNELS`` asks for something unknown, not built, or beyond this processor.
    """
    return current if current is not UNDECIDED else _use(_choose(os.environ.get(VARIABLE) or None))


def active() -> tuple[str, str]:
    """(what runs on the CPU: "reference" or "native-ISA", why)"""
    now = backend()
    return now.name, now.why


def runs_triton(device: torch.device) -> bool:
    """True if Triton's kernels serve this device."""
    return backend().module_of(device.type) == "triton"


def available() -> list[str]:
    """The backends that could be chosen here."""
    return ["reference", *(f"native-{isa}" for isa in native.isas())]


def slow_note() -> str | None:
    """A hint for the user if the native kernels are missing and no others were asked for; None if all is well."""
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
        return Backend("reference", why, {}, tries_triton=True)
    tries = choice is None and os.environ.get(INTERPRETER) != "1"
    if choice is None or choice == "native":
        isa, why = isas[-1], "the best that this processor has"
    else:
        isa, why = choice.removeprefix("native-"), f"asked for ({VARIABLE})"
        if isa not in isas:
            raise ConfigurationError(f"{VARIABLE}={choice}, but this processor has no more than {isas[-1]}")
    return Backend(f"native-{isa}", why, {"cpu": "native"}, native.Functions(isa), tries_triton=tries)


@functools.cache
def _find_triton() -> bool:
    """True if Triton's kernels can run on CUDA here, of which nobody has said that they should; if not, says why, once."""
    problem = "the package triton is not installed" if importlib.util.find_spec("triton") is None else None
    problem = problem or devices.find_triton_problem()
    if problem is not None:
        why = f"{SLOWER}{problem}; {VARIABLE}=native asks for them"
        warnings.warn(why, KernelsWarning, stacklevel=stack_level())
    return problem is None


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
        why = f"{other.why}; on CUDA plain torch: {problem}"
        return dataclasses.replace(other, why=why, tries_triton=False, chosen={})
    return dataclasses.replace(other, modules={**other.modules, "cuda": "triton"}, tries_triton=False, chosen={})
