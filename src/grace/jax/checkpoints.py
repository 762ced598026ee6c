"""The memories of a handle as an orbax checkpoint, next to that of the parameters and optax's state."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from grace.errors import ConfigurationError, StateError
from grace.jax.host import HostHandle
from grace.state import flat

_EMPTY = "empty"  # orbax does not save empty arrays: their kinds and shapes, as JSON


def save_memories(directory: str | os.PathLike[str], handle: HostHandle) -> None:
    """Saves what the handle holds in this process, with orbax. All workers call it with one directory, which all may share.

    Each worker writes ``rank-R-of-W`` in it, a checkpoint of orbax's ``PyTreeCheckpointer``, and replaces one that exists.

    Raises:
        ConfigurationError: orbax is not installed.
    """
    arrays = flat(handle.state_dict())
    empty = {name: [x.dtype.str, x.shape] for name, x in arrays.items() if not x.size}
    tree = {name: x for name, x in arrays.items() if x.size}
    tree[_EMPTY] = np.frombuffer(json.dumps(empty).encode(), np.uint8)
    with _checkpointer() as orbax:
        orbax.save(_place(directory, handle), tree, force=True)


def restore_memories(directory: str | os.PathLike[str], handle: HostHandle) -> None:
    """Goes on from what :func:`save_memories` saved, in a new handle made with the same arguments. All workers call it;
    restore optax's state of the same step, too.

    Raises:
        StateError: on all workers, if one has no such checkpoint, or it does not fit: saved by another number of workers,
            under another method, or for other parameters. Nothing has changed then.
        ConfigurationError: orbax is not installed.
    """
    place = _place(directory, handle)
    with _checkpointer() as orbax:
        try:
            tree = orbax.restore(place)
        except (FileNotFoundError, ValueError) as error:
            files = sorted(path.name for path in Path(directory).glob("rank-*"))
            problem = StateError(f"{place} is not a checkpoint of memories; found: {', '.join(files) or 'none'}")
            problem.__cause__ = error
            handle.refuse_load(problem)  # raises, on all workers
    handle.load_state_dict(_complete(tree))


def _complete(tree: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays as they were given to orbax, including empty ones."""
    arrays = {name: np.asarray(x) for name, x in tree.items()}
    empty = json.loads(bytes(arrays.pop(_EMPTY)).decode())
    return {**arrays, **{name: np.zeros(shape, kind) for name, (kind, shape) in empty.items()}}


def _place(directory: str | os.PathLike[str], handle: HostHandle) -> Path:
    return Path(directory).absolute() / f"rank-{handle.rank}-of-{handle.world}"


def _checkpointer() -> Any:
    """The checkpointer, for this process alone: in a job of jax.distributed orbax would write only process 0's arrays."""
    try:
        orbax = import_module("orbax.checkpoint")
    except ModuleNotFoundError as error:
        if error.name not in ("orbax", "orbax.checkpoint"):
            raise
        raise ConfigurationError("orbax is not installed: pip install orbax-checkpoint") from error
    me = jax.process_index()
    alone = orbax.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"grace-{me}"
    )
    handler = orbax.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return orbax.Checkpointer(handler, multiprocessing_options=alone)
