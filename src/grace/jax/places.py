"""Place of the exchange in a program, as far as tracing can tell."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import jax

from grace.errors import ConfigurationError

GLOBAL_ARRAYS = (
    "in a job of jax.distributed, a callback in plain jit on global arrays runs on process 0 only, which then waits for the "
    "others in vain. Use local arrays, a model in each process, or call update in jax.shard_map with one device of each "
    "process"
)


def check_wrappers() -> None:
    """Refuses ``optax.apply_if_finite`` around an exchange: it would skip the exchange only on the worker with the inf, and
    from then on different steps would be averaged. During tracing only the call stack shows this, and later is too late.

    Raises:
        ConfigurationError: with the remedy.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if "notfinite_count" in frame.f_code.co_varnames and frame.f_globals.get("__name__", "").startswith("optax."):
            raise ConfigurationError(
                "optax.apply_if_finite is around the exchange, and would leave it out on the worker with the inf alone. Put "
                "it around what follows: optax.chain(mean, optax.apply_if_finite(optax.adam(1e-3), 5)); all workers see a "
                "mean of NaN, and skip the step alike"
            )
        frame = frame.f_back  # type: ignore[assignment]


def check_shards(leaves: Iterable[Any], world: int, are_global: bool) -> None:
    """Refuses an exchange that JAX would run on only some processes, or several times, or on gradients that are already
    summed.

    Args:
        leaves: the gradients, as traced.
        world: how many processes exchange.
        are_global: whether parameters are spread over several processes.

    Raises:
        ConfigurationError: with the remedy.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = [axis for axis in mesh.manual_axes if mesh.shape[axis] > 1]
    devices = math.prod(mesh.shape[axis] for axis in axes)
    if devices > 1 and devices != world:
        raise ConfigurationError(
            f"update is called in a shard_map over {devices} devices, and {world} processes exchange: it takes one device of "
            "each. grace.jax.compressed_mean exchanges between devices, inside XLA"
        )
    for axis in axes:
        varies = axis in jax.typeof(jax.lax.axis_index(axis)).mat.varying
        if varies and any(axis not in jax.typeof(leaf).mat.varying for leaf in leaves):
            raise ConfigurationError(
                f"the gradients do not vary along {axis!r}: jax.grad has summed them over it already, as it does for "
                "parameters that are replicated. Use jax.shard_map(..., check_vma=False), or cast the parameters before the "
                f"gradient is taken: jax.lax.pcast(params, {axis!r}, to='varying')"
            )
    if are_global and not axes:
        raise ConfigurationError(f"the parameters are global arrays, and update is not in a shard_map: {GLOBAL_ARRAYS}")
