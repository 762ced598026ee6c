"""JAX's door: gradients averaged over all workers, as an optax ``GradientTransformation``.

On the host: all methods, over any transport. Inside XLA: some methods, no callback.
"""

from __future__ import annotations

from importlib import import_module

from grace.errors import ConfigurationError

for _name in ("jax", "optax"):
    try:
        import_module(_name)
    except ModuleNotFoundError as _error:
        if _error.name != _name:
            raise  # it is installed, but something that it imports is not
        raise ConfigurationError(
            f"grace.jax needs {_name}, which is not installed: pip install 'grace-dl[jax]'"
        ) from _error

from grace.jax.broadcast import broadcast_params
from grace.jax.calls import call_host
from grace.jax.checkpoints import restore_memories, save_memories
from grace.jax.host import CompressedMeanState, HostHandle, compressed_mean_on_host
from grace.jax.xla import StepBytes, XlaMeanState, compressed_mean, shard, state_specs, step_bytes

__all__ = [
    "CompressedMeanState",
    "HostHandle",
    "StepBytes",
    "XlaMeanState",
    "broadcast_params",
    "call_host",
    "compressed_mean",
    "compressed_mean_on_host",
    "restore_memories",
    "save_memories",
    "shard",
    "state_specs",
    "step_bytes",
]
