"""The methods: one paper, one file. Importing this package imports and so registers them all: a new file is enough.

The package can be called: ``grace.methods()`` gives the names of all registered methods.
"""

from __future__ import annotations

import sys
from types import ModuleType

import grace.communicators
import grace.memories  # noqa: F401  # recipes name communicators and memories, so these come first
from grace.contract.compressor import Compressor
from grace.contract.method import Method
from grace.registry import methods
from grace.registry.discovery import import_classes


class _CallablePackage(ModuleType):
    """A package and a function under one name: ``import grace.methods.topk`` and ``grace.methods()`` both work."""

    def __call__(self) -> tuple[str, ...]:
        return methods()


sys.modules[__name__].__class__ = _CallablePackage

_found = import_classes(__name__, __path__, Compressor, Method)
globals().update(_found)
__all__ = sorted(_found)
