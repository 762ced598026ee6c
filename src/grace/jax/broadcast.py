"""The same parameters on all workers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

from grace.collectives import Broadcast
from grace.errors import InputError
from grace.jax.trees import describe, name_leaves
from grace.transports.agreement import agree
from grace.transports.base import Transport
from grace.transports.choose import transport as choose_transport


def broadcast_params(params: Any, root: int = 0, *, transport: Transport | str = "auto") -> Any:
    """The root's numbers for all workers: a new tree of arrays. All workers call it, outside ``jit``.

    An array that was committed to a device stays so. Others stay uncommitted, or a step would be compiled twice: first for
    parameters that are committed beside an optax state that is not, then for what it has returned.

    Args:
        params: a pytree of local arrays of any dtype, such as parameters, an optax state, or flax's ``TrainState``. Leaves
            that are not arrays, such as Python's numbers, become arrays.
        root: the worker whose numbers all get.
        transport: between the workers, or how to find one; if it was found here, it is closed afterwards.

    Raises:
        InputError: random keys, or arrays that are spread over several processes, by name.
        FingerprintMismatch: trees that differ in structure, shapes or dtypes, on every worker.
        TransportError: the root is not a rank, or a worker was lost.

    Example:
        >>> import jax
        >>> from grace.transports.alone import Alone
        >>> print(broadcast_params({"w": jax.numpy.ones(2)}, transport=Alone()))
        {'w': Array([1., 1.], dtype=float32)}
    """
    network = choose_transport(transport) if isinstance(transport, str) else transport
    try:
        leaves = name_leaves(params)
        for name, leaf in leaves.items():
            if not getattr(leaf, "is_fully_addressable", True):
                raise InputError(f"{name!r} is spread over several processes; broadcast_params takes local arrays")
            if jax.dtypes.issubdtype(jax.typeof(leaf).dtype, jax.dtypes.prng_key):
                raise InputError(f"{name!r} is a random key; make it of jax.random.key_data(key) and wrap_key_data")
        agree({f"leaf {name}": str(describe(leaf)) for name, leaf in leaves.items()}, network)
        arrays = [np.asarray(leaf, order="C") for leaf in leaves.values()]
        local = np.concatenate([np.zeros(0, np.uint8), *(x.reshape(-1).view(np.uint8) for x in arrays)])
        theirs = network.run(Broadcast(torch.from_numpy(local), root)).numpy() if local.size else local
    except BaseException as error:
        network.close(error)
        raise
    if isinstance(transport, str):
        network.close()
    ends = np.cumsum([x.nbytes for x in arrays])
    parts = [theirs[end - x.nbytes : end].view(x.dtype).reshape(x.shape) for x, end in zip(arrays, ends, strict=True)]
    placed = [
        jax.device_put(part, leaf.sharding) if getattr(leaf, "committed", False) else jax.numpy.asarray(part)
        for part, leaf in zip(parts, leaves.values(), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(params), placed)
