"""Checkpoints of a syncer, as files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grace.decoupled.settings import SyncerSettings
from grace.decoupled.syncer import Syncer
from grace.errors import StateError


def write_checkpoint(state: Any, path: Path) -> None:
    """Writes a state, all of it or nothing.

    Raises:
        OSError, RuntimeError: it cannot be written; the second is torch's, for a directory that is not there.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        torch.save(state, beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def load_checkpoint(path: Path) -> Any:
    """The state in a file.

    Raises:
        StateError: it cannot be read, or would run code.
    """
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise StateError(f"{path} is no checkpoint of a syncer: {error}") from error


def read_parameters(checkpoint: str | Path) -> dict[str, Tensor]:
    """The merged parameters in a syncer's checkpoint, float32, by name. Buffers are not among them.

    Raises:
        StateError: it is not a syncer's checkpoint.
    """
    syncer = Syncer(SyncerSettings(learners=1), "")
    syncer.load_state_dict(load_checkpoint(Path(checkpoint)), 0.0)
    return syncer.parameters
