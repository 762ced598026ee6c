"""Pytrees of arrays as named lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from grace.errors import InputError

Kind = tuple[tuple[int, ...], str]  # shape and dtype
LEGAL = ("float16", "bfloat16", "float32", "float64")


def name_leaves(tree: Any) -> dict[str, Any]:
    """The leaves by name, ``layers/0/kernel``, in JAX's order; None is not a leaf.

    Raises:
        InputError: two leaves with the same name, as from the key "a/b" and from "a", then "b".
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "leaf"
        if name in leaves:
            raise InputError(f"two leaves of the tree are called {name!r}; rename a key that contains a slash")
        leaves[name] = leaf
    return leaves


def describe(leaf: Any) -> Kind:
    """Shape and dtype of a leaf: an array, traced or not, its jax.ShapeDtypeStruct, or a number."""
    kind = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else jax.typeof(leaf)
    return tuple(int(n) for n in kind.shape), str(getattr(kind.dtype, "name", kind.dtype))


def describe_gradients(tree: Any) -> dict[str, Kind]:
    """The result of :func:`describe` for each leaf, by name.

    Raises:
        InputError: a leaf that is not a gradient: integers, complex numbers, keys or 8-bit floats.
    """
    kinds = {name: describe(leaf) for name, leaf in name_leaves(tree).items()}
    strange = [f"{name!r} is {dtype}" for name, (_, dtype) in kinds.items() if dtype not in LEGAL]
    if strange:
        raise InputError(
            f"{'; '.join(strange)}; legal: {', '.join(LEGAL)}. Leave such leaves out: put None in their place, in the "
            "parameters given here and in the gradients, or use optax.partition or optax.masked"
        )
    return kinds


def describe_change(then: Mapping[str, Kind], now: Mapping[str, Kind]) -> str:
    """The differences between two trees, in words; empty if there are none."""
    changes = [f"{name!r} is missing" for name in then if name not in now]
    changes += [f"{name!r} is new" for name in now if name not in then]
    changes += [
        f"{name!r} is {now[name][1]} {now[name][0]}, and was {dtype} {shape}"
        for name, (shape, dtype) in then.items()
        if name in now and now[name] != (shape, dtype)
    ]
    if not changes and list(then) != list(now):
        changes = ["the order of leaves differs"]
    return "; ".join(changes[:5]) + ("; and more" if len(changes) > 5 else "")
