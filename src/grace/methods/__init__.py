"""The methods: one paper, one file. Importing this package imports and so registers them all: a new file is enough."""

from __future__ import annotations

import grace.communicators
import grace.memories  # noqa: F401  # recipes name communicators and memories, so these come first
from grace.contract.compressor import Compressor
from grace.contract.method import Method
from grace.registry.discovery import import_classes

_found = import_classes(__name__, __path__, Compressor, Method)
globals().update(_found)
__all__ = sorted(_found)
