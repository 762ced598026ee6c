"""Teaches the real Horovod ``grace=``."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from grace.errors import ConfigurationError
from grace_dl.communicator import Communicator
from grace_dl.horovod.optimizer import make


def teach(hvd: Any) -> None:
    """Makes ``hvd.DistributedOptimizer`` take a GRACE communicator, in second place or as ``grace=``. Without one it is
    Horovod's own.
    """
    original = hvd.DistributedOptimizer
    if getattr(original, "knows_grace", False):
        return

    def DistributedOptimizer(optimizer: Any, *args: Any, grace: Any = None, **knobs: Any) -> Any:  # noqa: N802
        if args and isinstance(args[0], Communicator):
            grace, *args = args  # type: ignore[assignment]
        if grace is None:
            return original(optimizer, *args, **knobs)
        _check_start(hvd)
        given = (
            dict(zip(("named_parameters", "compression", "backward_passes_per_step", "op"), args, strict=False)) | knobs
        )
        if given.get("process_set") not in (None, getattr(hvd, "global_process_set", None)):
            raise ConfigurationError(
                "process_set= beside grace=: a GRACE communicator is one of all ranks; leave one of the two out"
            )
        compression = given.get("compression")
        return make(
            optimizer, grace, given.get("named_parameters"), None if compression is hvd.Compression.none else compression,
            given.get("backward_passes_per_step", 1), given.get("op"), average=hvd.Average,
        )  # fmt: skip

    DistributedOptimizer.knows_grace = True  # type: ignore[attr-defined]
    hvd.DistributedOptimizer = DistributedOptimizer


def teach_tensorflow(hvd: Any) -> None:
    """The same for ``hvd.DistributedGradientTape`` and ``hvd.DistributedOptimizer`` of TensorFlow and Keras; a communicator
    may be any argument.
    """
    for name in ("DistributedGradientTape", "DistributedOptimizer"):
        if hasattr(hvd, name):
            setattr(hvd, name, _learn(hvd, name, getattr(hvd, name)))
    if hasattr(hvd, "callbacks"):  # Horovod's own use what Keras 3 removed, and demand an initial_lr that was optional
        from grace_dl.horovod import callbacks

        for name in callbacks.__all__:
            setattr(hvd.callbacks, name, getattr(callbacks, name))


def _learn(hvd: Any, name: str, original: Any) -> Any:
    def call(first: Any, *args: Any, grace: Any = None, **knobs: Any) -> Any:
        grace = next((given for given in args if isinstance(given, Communicator)), grace)
        if grace is None:
            return original(first, *args, **knobs)
        _check_start(hvd)
        from grace_dl.horovod import on_tensorflow  # imports TensorFlow

        return getattr(on_tensorflow, name)(first, grace=grace)

    call.knows_grace = True  # type: ignore[attr-defined]
    return original if getattr(original, "knows_grace", False) else call


def _check_start(hvd: Any) -> None:
    if not hvd.is_initialized():  # each worker would train alone
        raise ValueError("Horovod has not been initialized; use hvd.init().")


class Teacher(importlib.abc.MetaPathFinder):
    """Finds Horovod's sides for TensorFlow, and teaches them when a script imports them, not before: it takes seconds."""

    NAMES = ("horovod.tensorflow", "horovod.tensorflow.keras")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec with which Python finds the module, made to teach it when it is loaded."""
        if fullname not in self.NAMES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            own = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                own(module)
                teach_tensorflow(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def begin(self) -> None:
        """Starts to watch imports."""
        if not any(isinstance(finder, Teacher) for finder in sys.meta_path):
            sys.meta_path.insert(0, self)
        for name in self.NAMES:
            if name in sys.modules:
                teach_tensorflow(sys.modules[name])
