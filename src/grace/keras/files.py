"""States of handles as files: ``.npz`` of numpy arrays, or ``.pt`` of torch. One for each rank."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import torch

from grace.errors import ConfigurationError, StateError
from grace.state import flat, nested


def name_file(path: str | pathlib.Path, rank: int, world: int, **places: int) -> pathlib.Path:
    """The file of this rank, with ``{rank}`` and everything in ``places`` filled in.

    Raises:
        ConfigurationError: an ending that is not known, an unknown place, or one file for several ranks.
    """
    text = os.fspath(path)
    if not text.endswith((".npz", ".pt")):
        raise ConfigurationError(f"the file {text!r} of a state should end in .npz or .pt")
    try:
        own, neighbour = (text.format(rank=r, **places) for r in (rank, rank + 1))
    except (LookupError, ValueError) as error:
        legal = ", ".join(f"{{{name}}}" for name in ("rank", *places))
        raise ConfigurationError(f"the name {text!r} of a state's file cannot be filled in; legal: {legal}") from error
    if world > 1 and own == neighbour:
        raise ConfigurationError(f"each rank writes a state of its own: put {{rank}} into the name {text!r}")
    return pathlib.Path(own)


def write_state(path: str | pathlib.Path, state: Any, rank: int, world: int, **places: int) -> None:
    """Writes the file completely or not at all: a file that exists can be read."""
    file = name_file(path, rank, world, **places)
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as out:
            if file.suffix == ".npz":
                np.savez(out, allow_pickle=False, **flat(state))
            else:
                torch.save(state, out)
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)


def read_state(path: str | pathlib.Path, rank: int, world: int) -> Any:
    """The inverse of :func:`write_state`. Nothing that the file could run is run.

    Raises:
        StateError: it does not exist, or is damaged.
    """
    file = name_file(path, rank, world)
    try:
        if file.suffix == ".npz":
            with np.load(file) as arrays:
                return nested(dict(arrays))
        return torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # what reading a damaged file raises depends on the damage
        raise StateError(f"cannot read {file}: {type(error).__name__}: {error}") from error
