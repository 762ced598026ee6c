"""Makes ``import grace_dl.torch.compressor.topk`` and its like work, from one table."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
from collections.abc import Sequence
from types import ModuleType

TOOLKITS = ("dist", "torch", "tensorflow")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``grace_dl.TOOLKIT``, and in it ``helper``, ``KIND`` and ``KIND.MODULE``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of this module; None if GRACE had no such module."""
        package, _, tail = fullname.partition(".")
        toolkit, *path_within = tail.split(".")
        if package != __package__ or toolkit not in TOOLKITS:
            return None
        from grace_dl.table import contents

        content = contents(toolkit, tuple(path_within))
        if content is None:
            return None
        leaf = len(path_within) == 2 or path_within == ["helper"]
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=not leaf)
        spec.loader_state = content
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Fills the module with its classes."""
        assert module.__spec__ is not None
        vars(module).update(module.__spec__.loader_state)
