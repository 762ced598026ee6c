"""Dispatch of an operation to one of its implementations, chosen once for each type of device.

A family of operations is a package. Its ``__init__`` declares each operation: a function decorated with :func:`operation`,
whose body is a docstring. Its modules hold functions of the same name and signature:

- ``reference.py``: all operations, in plain torch, for any device. It specifies the others.
- ``native.py``: those that have a native kernel, for the CPU.
- ``triton.py``: those that have a Triton kernel, for CUDA. It is found by its name; nothing else has to change. Where that is
  more than one file holds, it is a package ``triton``, whose ``__init__`` has the operations.

A module that is missing, that lacks the operation, or whose package is not installed leaves the operation to the reference.
An implementation that does not take some arguments (a dtype, a number of bits) may return ``NotImplemented`` before it has
written anything; the reference then runs. So it does where a kernel's table is not on the device (:class:`NoTable`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from grace.compute import backends

P = ParamSpec("P")
R = TypeVar("R")


class NoTable(Exception):
    """Raised by a kernel's table that is not on the device, while work is captured: it cannot be copied there now."""


def operation(signature: Callable[P, R]) -> Callable[P, R]:
    """The operation of this name, signature and docstring in the family that is the package around it.

    The device is that of its first argument that is annotated ``Tensor``.
    """
    parameters = list(inspect.signature(signature).parameters.values())
    place = next(i for i, parameter in enumerate(parameters) if parameter.annotation == "Tensor")
    name = parameters[place].name

    @functools.wraps(signature)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            x: Any = args[place]
            run: Any = backends.current.chosen[signature if x.is_cpu else (signature, x.device.type)]
        except (IndexError, KeyError):  # the tensor is a keyword argument, or this is the first call
            run = None
        if run is None:
            run = _choose(signature, args[place] if place < len(args) else kwargs[name])
        try:
            out: R = run(*args, **kwargs)
        except NoTable:
            out = _reference(signature)(*args, **kwargs)
        if out is NotImplemented:
            out = _reference(signature)(*args, **kwargs)
        return out

    return call


def _choose(signature: Callable[..., Any], x: Any) -> Callable[..., Any]:
    """The implementation of an operation on this tensor's device, under the backend in use; remembered there."""
    backend = backends.backend()
    module = backend.module_of(x.device.type)
    function = (None if module is None else _find(signature, module)) or _reference(signature)
    return backend.chosen.setdefault(signature if x.is_cpu else (signature, x.device.type), function)


def _reference(signature: Callable[..., Any]) -> Callable[..., Any]:
    function = _find(signature, "reference")
    assert function is not None, f"{signature.__module__}.reference has no {signature.__name__}"
    return function


@functools.cache
def _find(signature: Callable[..., Any], module: str) -> Callable[..., Any] | None:
    """A family's function of this name in its module of this name, if it has one."""
    path = f"{signature.__module__}.{module}"
    if importlib.util.find_spec(path) is None:
        return None
    try:
        function = getattr(importlib.import_module(path), signature.__name__, None)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module:
            raise
        return None  # a package of the module's name, such as triton, is not installed
    return function if getattr(function, "__module__", None) == path else None  # another family's may be imported there
