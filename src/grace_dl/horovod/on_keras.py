"""The names of ``horovod.tensorflow.keras``."""

from __future__ import annotations

from grace_dl.horovod import callbacks as callbacks
from grace_dl.horovod import on_tensorflow
from grace_dl.horovod.on_tensorflow import *  # noqa: F403

__all__ = [*on_tensorflow.__all__, "callbacks"]
