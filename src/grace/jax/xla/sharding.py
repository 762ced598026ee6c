"""Arrays onto a mesh: the remedy where JAX says that specs do not match the specs of the input."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from grace.errors import ConfigurationError, InputError
from grace.jax.trees import name_leaves


def shard(tree: Any, mesh: Mesh, specs: Any) -> Any:
    """The same numbers, laid out over a mesh: a state, parameters or a batch for a ``shard_map`` with these specs.

    Args:
        tree: arrays of any shape, whole: in a job of several processes each gives the same.
        mesh: of devices.
        specs: a ``PartitionSpec`` for each leaf, as :func:`grace.jax.state_specs` gives them, or one for all.

    Raises:
        ConfigurationError: specs of another tree, or of an axis that the mesh does not have.
        InputError: a leaf that its axis does not divide; by name.

    Example:
        >>> import jax
        >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
        >>> batch = shard({"x": jax.numpy.zeros((64, 8))}, mesh, jax.sharding.PartitionSpec("data"))
        >>> batch["x"].sharding.spec[0]
        'data'
    """
    leaves, structure = jax.tree.flatten(tree)
    if isinstance(specs, PartitionSpec):
        flat = [specs] * len(leaves)
    else:
        flat, other = jax.tree.flatten(specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
        if other != structure:
            raise ConfigurationError(
                f"the specs are of another tree: {other}, and this is {structure}; grace.jax.state_specs(state) gives those "
                "of a state"
            )
    named = name_leaves(tree)
    return jax.tree.unflatten(
        structure, [_put(name, x, mesh, spec) for (name, x), spec in zip(named.items(), flat, strict=True)]
    )


def _put(name: str, x: Any, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    values = np.asarray(x) if not isinstance(x, jax.Array) or x.is_fully_addressable else x
    for size, axis in zip(values.shape, spec, strict=False):
        axes = () if axis is None else (axis,) if isinstance(axis, str) else tuple(axis)
        if absent := [axis for axis in axes if axis not in mesh.shape]:
            raise ConfigurationError(f"the mesh has no axis {absent[0]!r}; legal: {', '.join(map(repr, mesh.shape))}")
        parts = int(np.prod([mesh.shape[axis] for axis in axes]))
        if size % parts:
            raise InputError(
                f"{name!r} is {values.shape}, and {parts} devices along {axis!r} cannot share {size} rows alike: give a "
                f"multiple of {parts}"
            )
    sharding = NamedSharding(mesh, spec)
    if isinstance(values, jax.Array):  # on devices of several processes already
        return jax.device_put(values, sharding)
    return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)
