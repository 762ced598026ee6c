"""States as plain numbers: ``flat(handle.state_dict())`` is a dictionary of numpy arrays, for npz, orbax or HDF5 files.

The array ``structure`` describes the containers, as JSON in UTF-8; each tensor is an array under its place, such as
``states/fc.weight/0``. numpy has no bfloat16: such a tensor is stored as uint16, its bits, and marked in ``structure``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grace.errors import StateError

STRUCTURE = "structure"
_PLAIN = (bool, int, float, str, type(None))


def flat(state: Any) -> dict[str, NDArray[Any]]:
    """A state, of dictionaries with string keys, lists, tuples, tensors and plain values, as numpy arrays by name.

    Raises:
        StateError: it holds something else; says where.
    """
    arrays: dict[str, NDArray[Any]] = {}
    structure = _describe(state, "", arrays)
    text = np.frombuffer(json.dumps(structure).encode(), dtype=np.uint8)
    return {STRUCTURE: text, **arrays}


def nested(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The inverse of :func:`flat`. Tensors are new, and on the CPU.

    Raises:
        StateError: these are not such arrays.
    """
    if STRUCTURE not in arrays:
        raise StateError(f"not a flat state: it lacks the array {STRUCTURE!r}")
    try:
        structure = json.loads(bytes(np.asarray(arrays[STRUCTURE], dtype=np.uint8)).decode())
        return _build(structure, arrays)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"not a flat state: {type(error).__name__}: {error}") from error


def _describe(part: Any, place: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """The structure of a part, in JSON's types; its tensors go into ``arrays``."""
    if isinstance(part, Tensor):
        name = place.removeprefix("/")
        x = part.detach().cpu()
        kind = str(x.dtype).removeprefix("torch.")
        arrays[name] = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy().copy()
        return {"tensor": name, "dtype": kind}
    if isinstance(part, Mapping):
        if strange := [key for key in part if not isinstance(key, str)]:
            raise StateError(f"{place or 'the state'} has the key {strange[0]!r}; legal: strings")
        return {"dict": {key: _describe(x, f"{place}/{_escape(key)}", arrays) for key, x in part.items()}}
    if isinstance(part, list | tuple):
        kind = "list" if isinstance(part, list) else "tuple"
        return {kind: [_describe(x, f"{place}/{index}", arrays) for index, x in enumerate(part)]}
    if isinstance(part, _PLAIN):
        return {"value": part}
    raise StateError(
        f"{place or 'the state'} is {type(part).__name__}; legal: tensors, dicts, lists, tuples, plain values"
    )


def _escape(key: str) -> str:
    """As in JSON pointers (RFC 6901), so that names with slashes stay apart."""
    return key.replace("~", "~0").replace("/", "~1")


def _build(structure: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    if "tensor" in structure:
        x = torch.from_numpy(np.array(arrays[structure["tensor"]]))
        dtype = getattr(torch, structure["dtype"])
        return x.view(dtype) if dtype == torch.bfloat16 else x
    if "dict" in structure:
        return {key: _build(x, arrays) for key, x in structure["dict"].items()}
    if "list" in structure:
        return [_build(x, arrays) for x in structure["list"]]
    if "tuple" in structure:
        return tuple(_build(x, arrays) for x in structure["tuple"])
    return structure["value"]
