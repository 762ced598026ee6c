"""Random numbers of procedural data: one stream for each chunk, so that any part can be made without the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def stream(seed: int, chunk: int) -> np.random.RandomState:
    """The random numbers of one chunk: Philox, a counter-based generator, keyed by both numbers.

    ``RandomState`` and not ``Generator``: NumPy promises never to change its distributions.
    """
    return np.random.RandomState(np.random.Philox(key=np.array([seed, chunk], np.uint64)))


def digest(arrays: Iterable[Array]) -> str:
    """16 hexadecimal digits of what the arrays hold, their types and shapes included."""
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(f"{array.dtype.str}{array.shape}".encode())
        hasher.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return hasher.hexdigest()[:16]
