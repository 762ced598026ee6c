"""``import horovod.torch`` without Horovod: the part of its interface that scripts use, over Grace's transports.

If Horovod is installed, it is used, and its optimizers and its tape only learn ``grace=``.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

VERSION = "0.28.1+grace"  # the interface's
_FILES = {
    "horovod": "",
    "horovod.torch": "on_torch", "horovod.torch.mpi_ops": "on_torch",
    "horovod.tensorflow": "on_tensorflow", "horovod.tensorflow.mpi_ops": "on_tensorflow",
    "horovod.tensorflow.keras": "on_keras", "horovod.tensorflow.keras.callbacks": "callbacks",
    "horovod.keras": "on_keras", "horovod.keras.callbacks": "callbacks",
}  # fmt: skip


def stand_in() -> str:
    """Makes ``import horovod.torch``, ``horovod.tensorflow`` and ``horovod.tensorflow.keras`` work, with or without Horovod.
    ``grace migrate`` calls it; a script may call it before it imports Horovod.

    Returns:
        Which Horovod that is: its version, or "a stand-in".

    Example:
        >>> import grace_dl
        >>> grace_dl.stand_in()
        'a stand-in'
        >>> import horovod.torch as hvd
        >>> hvd.is_initialized()
        False
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return "a stand-in"
    if importlib.util.find_spec("horovod") is None:
        sys.meta_path.insert(0, _Finder())
        return "a stand-in"
    from grace_dl.horovod.teaching import Teacher, teach

    Teacher().begin()
    hvd = importlib.import_module("horovod.torch")
    teach(hvd)
    return f"Horovod {importlib.import_module('horovod').__version__}"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``horovod`` and what is in it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of this module; None if it is not one of Horovod's."""
        if fullname not in _FILES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Fills the module with the names of its stand-in."""
        source = _FILES[module.__name__]
        vars(module).update(__version__=VERSION, stands_in=True)
        if not source:
            return
        names = importlib.import_module(f"{__name__}.{source}")
        vars(module).update({name: getattr(names, name) for name in names.__all__})

        def lacks(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            legal = ", ".join(sorted(names.__all__))
            raise AttributeError(
                f"{module.__name__}.{name} is not among what Grace's stand-in for Horovod has: {legal}. Install Horovod, or "
                "leave it out"
            )

        module.__getattr__ = lacks  # type: ignore[method-assign]
