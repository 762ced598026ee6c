"""The native kernels: a shared library with a plain C interface, loaded at first use.

``grace.compute.backends`` says which of its functions run; the families' files ``native.py`` call them.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import weakref
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from grace.errors import ConfigurationError, InputError

ISAS: Final = ("base", "avx2", "avx512")
BAD_HEAD, BAD_CODE = -1, -2  # why a decoder refused
_NAMES = ("libgrace_kernels.so", "libgrace_kernels.dylib")
_SOURCES = Path(__file__).parents[3] / "native"  # in a checkout; an installed package has none

P, I, N, U = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint32
F, D = ctypes.c_float, ctypes.c_double
_BY_NAME = {"int": I, "int64_t": N, "uint32_t": U, "float": F, "double": D, "Wires": P}  # all others are pointers
_signatures: dict[str, tuple[Any, ...]] = {}


def declare(name: str, *types: Any) -> None:
    """Declares the arguments that ``c.NAME`` is called with. The first call compares them with what the library declares."""
    _signatures[name] = types


declare("call_many", I, P, N, N, P)


class Functions:
    """The C functions ``grace_NAME_ISA`` of one instruction set, as attributes; each returns an int64.

    Args:
        isa: one of :data:`ISAS`.

    together: whether there is a function that calls another one of them many times.

    Raises:
        ConfigurationError: on reading an attribute whose function is missing or takes other arguments.
    """

    def __init__(self, isa: str):
        self._isa, self.together = isa, has("call_many")
        self._numbers: dict[int, int] = {}  # by id: where those that were read stand in the library's list

    def __getattr__(self, name: str) -> Callable[..., int]:
        ours = _signatures.get(name)
        if ours is None:
            raise AttributeError(f"no file has declared a native kernel {name!r}")
        library = _library()
        assert not isinstance(library, str), library  # no backend is made without one
        listed = interface(library)
        theirs = listed.get(name)
        if theirs is None or tuple(map(_type, theirs)) != ours:
            problem = f"{name}({', '.join(theirs)}), called otherwise" if theirs else f"no {name!r}"
            what = f"has {problem}" if listed else "does not say what it has"
            raise ConfigurationError(
                f"the native library {library._name} is older than its sources: it {what}; run `make setup`, "
                "or install Grace again"
            )
        bound = getattr(library, f"grace_{name}_{self._isa}")
        bound.argtypes, bound.restype = ours, ctypes.c_int64
        setattr(self, name, bound)
        self._numbers[id(bound)] = list(listed).index(name)
        return bound  # type: ignore[no-any-return]

    def number_of(self, kernel: Callable[..., int]) -> tuple[int, tuple[Any, ...]]:
        """Position of one of these in the library's list, and the types of its arguments."""
        return self._numbers[id(kernel)], kernel.argtypes  # type: ignore[attr-defined]


c: Functions  # those in use; none before a backend is chosen, or where nothing was built


def has(name: str) -> bool:
    """True if the library in use has this function."""
    library = _library()
    return not isinstance(library, str) and name in interface(library)


def find(name: str, *types: Any) -> Callable[..., int] | None:
    """A function of the library that is no kernel: ``grace_NAME`` with these arguments; None where there is none."""
    bound = getattr(_library(), f"grace_{name}", None)
    if bound is not None:
        bound.argtypes, bound.restype = types, ctypes.c_int64
    return bound


def address(name: str, x: Tensor, dtype: torch.dtype, count: int) -> int:
    """The address of ``count`` numbers of this dtype, of any shape, side by side in the processor's memory.

    Raises:
        InputError: the tensor is something else; it names the argument, and says what is legal.
    """
    if x.dtype is not dtype or x.numel() != count or not x.is_cpu or not x.is_contiguous():
        raise refuse(name, x, dtype, f"{count} numbers")
    return x.data_ptr()


def address_of_rows(name: str, x: Tensor, width: int) -> int:
    """The address of rows uint8 ``[b, w]``, of at least ``width`` bytes side by side, in the processor's memory.

    Raises:
        InputError: the tensor is something else.
    """
    good = x.dtype is torch.uint8 and x.is_cpu and x.ndim == 2 and (x.shape[1] < 2 or x.stride(1) == 1)
    if not good or x.shape[1] < width:
        raise refuse(name, x, torch.uint8, f"rows of at least {width} bytes")
    return x.data_ptr()


def refuse(name: str, x: Tensor, dtype: torch.dtype, wanted: str | Sequence[int]) -> InputError:
    """The error for an argument of any shape that is not contiguous, of this dtype, as wanted, in the processor's memory."""
    order = ("" if x.is_contiguous() else ", not contiguous") + ("" if x.is_cpu else f", on {x.device}")
    kind = str(dtype).removeprefix("torch.")
    return InputError(
        f"kernels: {name} must be contiguous {kind}{f' {wanted}' if wanted else ''}, got {x.dtype} {list(x.shape)}{order}; "
        f"use {'' if x.is_cpu else '.cpu()'}.to(torch.{kind}).contiguous()"
    )


def threads() -> int:
    """Number of threads that a kernel may use: as many as torch."""
    return torch.get_num_threads()


def library() -> str:
    """The file that holds the native kernels, or why there is none."""
    loaded = _library()
    return loaded if isinstance(loaded, str) else str(loaded._name)


def isas() -> tuple[str, ...]:
    """The instruction sets that this processor has, the best one last; none without a library."""
    loaded = _library()
    return () if isinstance(loaded, str) else ISAS[: int(loaded.grace_best()) + 1]


def interface(library: ctypes.CDLL) -> dict[str, tuple[str, ...]]:
    """The functions of a library, and the C types of their arguments."""
    known = _interfaces.get(library)
    if known is None:
        known = _interfaces[library] = _read_interface(library)
    return known


_interfaces: weakref.WeakKeyDictionary[ctypes.CDLL, dict[str, tuple[str, ...]]] = weakref.WeakKeyDictionary()


def _read_interface(library: ctypes.CDLL) -> dict[str, tuple[str, ...]]:
    try:
        text = library.grace_signatures
    except AttributeError:  # a library from before it had one
        return {}
    text.restype = ctypes.c_char_p
    lines = re.findall(r"^(\w+)\((.*)\)$", text().decode(), re.MULTILINE)
    return {name: tuple(arguments.split(", ")) for name, arguments in lines}


def _type(name: str) -> Any:
    return P if name.endswith("*") else _BY_NAME[name]


_loaded: ctypes.CDLL | str | None = None


def _library() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded


def open_library(file: str) -> ctypes.CDLL | str:
    """The native kernels of this file, or why it cannot be loaded."""
    try:
        library = ctypes.CDLL(file)
    except OSError as error:
        return f"the native library cannot be loaded: {error}"
    library.grace_best.restype = ctypes.c_int64
    return library


def digest(sources: Path) -> str | None:
    """The digest of a library's sources that native/CMakeLists.txt puts into it; None where there are no sources to read."""
    listed = hashlib.sha256()
    patterns = ("CMakeLists.txt", "*.h", "*.cc", "kernels/*.h", "kernels/*.cc")
    try:
        if not (sources / "signatures.h").is_file():
            return None
        for name in sorted(f.relative_to(sources).as_posix() for pattern in patterns for f in sources.glob(pattern)):
            listed.update(f"{name} {hashlib.sha256((sources / name).read_bytes()).hexdigest()}\n".encode())
    except OSError:
        return None
    return listed.hexdigest()


def is_older(library: ctypes.CDLL, sources: Path) -> bool:
    """True if the library was built from other sources than those that lie here; where none lie, nobody can know."""
    here = digest(sources)
    if here is None:
        return False
    built_from = getattr(library, "grace_sources", None)
    if built_from is None:  # a library from before it had one
        return True
    built_from.restype = ctypes.c_char_p
    return bool(built_from().decode() != here)


def _load() -> ctypes.CDLL | str:
    # An editable installation keeps built files apart from the sources: importlib.resources knows both places.
    places = [Path(__file__).parents[1], resources.files("grace")]
    for place in places:
        for name in _NAMES:
            file = place.joinpath(name)
            if file.is_file():
                library = open_library(str(file))
                if isinstance(library, str) or not is_older(library, _SOURCES):
                    return library
                # Its kernels may write other bytes than the rest of this checkout reads.
                return f"the native library {file} was not built from the sources in {_SOURCES}; run `make setup`"
    return "the native library was not built; install Grace again where there is a C++ compiler"
