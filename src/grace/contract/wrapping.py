"""The layers of a method: a memory around a communicator around a compressor.

What a layer wraps is its field ``method`` (memories, delays) or ``compressor`` (communicators, lossless stages). Grace looks
for it under these two names only.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from grace.contract.compressor import Compressor
from grace.contract.method import Method

Layer: TypeAlias = Method[Any] | Compressor
WRAPPED = ("method", "compressor")


def unwrap(layer: Layer) -> Layer | None:
    """Return the layer that this one wraps; None for the innermost."""
    for name in WRAPPED:
        inner = getattr(layer, name, None)
        if isinstance(inner, Method | Compressor):
            return inner
    return None


def layers(method: Layer) -> tuple[Layer, ...]:
    """A method and all that it wraps, from the outermost to the innermost.

    Example:
        >>> [type(layer).__name__ for layer in layers(method("topk"))]
        ['ErrorFeedback', 'Allgather', 'TopK']
    """
    out = [method]
    while (inner := unwrap(out[-1])) is not None:
        out.append(inner)
    return tuple(out)


def find_compressor(method: Layer) -> Compressor | None:
    """The outermost compressor of a method, the one its communicator calls; None if the method has none."""
    return next((layer for layer in layers(method) if isinstance(layer, Compressor)), None)


def own_fields(layer: type) -> list[str]:
    """The knobs of a class: the fields of the dataclass except what it wraps."""
    return [field.name for field in dataclasses.fields(layer) if field.init and field.name not in WRAPPED]
