"""The native kernels: a shared library with a plain C interface, loaded at first use.

``GRACE_KERNELS`` forces one backend: ``reference`` (plain torch), ``native`` (the best instruction set of this processor), or
``native-base``, ``native-avx2``, ``native-avx512``. Without it the native kernels are used where they were built.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import torch

from grace.errors import ConfigurationError, out_of_range

ISAS: Final = ("base", "avx2", "avx512")
CHOICES: Final = ("reference", "native", *(f"native-{isa}" for isa in ISAS))
VARIABLE: Final = "GRACE_KERNELS"
_VERSION = 1  # of the C interface
BAD_HEAD, BAD_CODE = -1, -2  # why a decoder refused
_NAMES = ("libgrace_kernels.so", "libgrace_kernels.dylib")

P, I, N, U, F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint32, ctypes.c_float
_SIGNATURES: dict[str, tuple[Any, ...]] = {}


def declare(name: str, *types: Any) -> str:
    """Says which arguments the C function ``grace_<name>_<isa>`` takes; it returns an int64. Returns the name."""
    _SIGNATURES[name] = types
    return name


@dataclass(frozen=True, slots=True)
class _Active:
    """What runs: ``isa`` is None for the reference."""

    isa: str | None
    why: str
    functions: dict[str, Any]


_active: _Active | None = None


def function(name: str) -> Callable[..., int] | None:
    """The C function of this name, for the instruction set in use; None where the reference is to be used."""
    active = _active or _activate(os.environ.get(VARIABLE) or None)
    if active.isa is None:
        return None
    found: Callable[..., int] | None = active.functions.get(name)
    return found if found is not None else _bind(active, name)


def threads() -> int:
    """How many threads a kernel may use: as many as torch."""
    return torch.get_num_threads()


def active() -> tuple[str, str]:
    """(what runs: "reference" or "native-<isa>", why)"""
    now = _active or _activate(os.environ.get(VARIABLE) or None)
    return ("reference" if now.isa is None else f"native-{now.isa}"), now.why


def available() -> list[str]:
    """What could be chosen here."""
    found = _library()
    if isinstance(found, str):
        return ["reference"]
    return ["reference", *(f"native-{isa}" for isa in ISAS[: int(found.grace_best()) + 1])]


def library() -> str:
    """The file that holds the native kernels, or why there is none."""
    found = _library()
    return found if isinstance(found, str) else str(found._name)


@contextlib.contextmanager
def using(choice: str) -> Iterator[None]:
    """Another backend for a while, in all threads. For tests and benchmarks.

    Raises:
        ConfigurationError: it is unknown, was not built, or the processor cannot run it.
    """
    global _active
    before = _active
    try:
        _activate(choice)
        yield
    finally:
        _active = before


def _activate(choice: str | None) -> _Active:
    global _active
    if choice is not None and choice not in CHOICES:
        raise out_of_range("kernels", VARIABLE, choice, ", ".join(CHOICES))
    if choice == "reference":
        _active = _Active(None, f"asked for ({VARIABLE})", {})
        return _active
    library = _library()
    if isinstance(library, str):
        if choice is not None:
            raise ConfigurationError(f"{VARIABLE}={choice}, but {library}")
        warnings.warn(f"Grace uses its slower torch kernels: {library}", stacklevel=3)
        _active = _Active(None, library, {})
        return _active
    best = int(library.grace_best())
    if choice is None or choice == "native":
        isa, why = ISAS[best], "the best that this processor has"
    else:
        isa, why = choice.removeprefix("native-"), f"asked for ({VARIABLE})"
        if ISAS.index(isa) > best:
            raise ConfigurationError(f"{VARIABLE}={choice}, but this processor has no more than {ISAS[best]}")
    _active = _Active(isa, why, {"": library})
    return _active


def _bind(active: _Active, name: str) -> Callable[..., int]:
    bound = getattr(active.functions[""], f"grace_{name}_{active.isa}")
    bound.argtypes, bound.restype = _SIGNATURES[name], ctypes.c_int64
    active.functions[name] = bound
    return bound  # type: ignore[no-any-return]


_loaded: ctypes.CDLL | str | None = None


def _library() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded


def _load() -> ctypes.CDLL | str:
    # An editable installation keeps what was built apart from the sources: importlib.resources knows both places.
    places = [Path(__file__).parent, resources.files(__package__)]
    for place in places:
        for name in _NAMES:
            file = place.joinpath(name)
            if file.is_file():
                try:
                    library = ctypes.CDLL(str(file))
                except OSError as error:
                    return f"the native library cannot be loaded: {error}"
                library.grace_version.restype = library.grace_best.restype = ctypes.c_int64
                if library.grace_version() != _VERSION:
                    return "the native library is of another version of Grace; install Grace again"
                return library
    return "the native library was not built; install Grace again where there is a C++ compiler"
