"""From a compiled function to the host and back: a list of arrays through one ordered callback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental import io_callback
from numpy.typing import NDArray
from torch import Tensor

from grace.errors import InputError
from grace.jax.buffers import TARGET, can_lend, expect, run_in_place

Exchange = Callable[..., Sequence[Tensor]]
_TICKET = jax.ShapeDtypeStruct((), np.int32)


def call_host(exchange: Exchange, arrays: Sequence[jax.Array], *numbers: Any) -> list[jax.Array]:
    """Hands these arrays to ``exchange`` on the host, and returns its results. It may be traced: under ``jit``, in ``scan``,
    ``while_loop`` and ``cond``; not under ``vmap`` or ``grad``, which JAX refuses.

    Callbacks of one program run in the order of tracing, and none is left out, so all workers make the same exchanges in the
    same order.

    Args:
        exchange: ``exchange(tensors, *numbers)``: torch tensors in place of the arrays, which must be neither written nor
            kept, and numbers as Python's. It returns a tensor of the same shape and dtype for each.
        arrays: all of one call, on any device.
        numbers: scalars that travel along, traced or not.

    Raises:
        jax.errors.JaxRuntimeError: ``exchange`` has raised; its text is inside. It is raised when the program waits for the
            results.

    Example:
        >>> import jax
        >>> double = jax.jit(lambda x: call_host(lambda tensors: [2 * t for t in tensors], [x])[0])
        >>> print(double(jax.numpy.arange(3.0)))
        [0. 2. 4.]
    """
    arrays = list(arrays)
    # ordered: one order on all workers; jit may reorder others, and run them side by side
    return _lend(exchange, arrays, numbers) if can_lend() else _copy(exchange, arrays, numbers)


def _lend(exchange: Exchange, arrays: list[Any], numbers: Sequence[Any]) -> list[jax.Array]:
    """On the CPU. JAX orders only callbacks, so two small ones around the call that lends the buffers give it its place; the
    first one also keeps ``exchange`` alive as long as the program.
    """
    shapes = [tuple(x.shape) for x in arrays]
    dtypes = [_read_dtype(x) for x in arrays]

    def announce(_: Any, *numbers: Any) -> NDArray[np.int32]:
        given = [np.asarray(x).item() for x in numbers]
        ticket = expect(lambda places: run_in_place(lambda xs: exchange(xs, *given), shapes, dtypes, places))
        return np.array(ticket, np.int32)

    # it depends on no array, so JAX refuses to vmap or differentiate it, and says why
    nothing = jnp.concatenate([jnp.zeros(0), *(jnp.ravel(x)[:0].astype(jnp.float32) for x in arrays)])
    ticket = io_callback(announce, _TICKET, nothing, *numbers, ordered=True)
    kinds = (_TICKET, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays))
    same = {i: i for i in range(1, len(kinds))}
    call = jax.ffi.ffi_call(TARGET, kinds, input_output_aliases=same)  # using its result keeps it in the program
    done, *means = call(ticket, *arrays)
    io_callback(lambda _: None, None, done, ordered=True)
    return list(means)


def _copy(exchange: Exchange, arrays: list[Any], numbers: Sequence[Any]) -> list[jax.Array]:
    """On an accelerator: one callback."""

    def host(*values: Any) -> tuple[NDArray[Any], ...]:
        tensors = [to_torch(x) for x in values[: len(arrays)]]
        given = [np.asarray(x).item() for x in values[len(arrays) :]]
        return tuple([to_numpy(x) for x in exchange(tensors, *given)])

    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays)
    return list(io_callback(host, shapes, *arrays, *numbers, ordered=True))


def _read_dtype(x: Any) -> torch.dtype:
    dtype = getattr(torch, x.dtype.name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"torch has no {x.dtype.name}")
    return dtype


def to_torch(x: Any) -> Tensor:
    """A tensor over the same memory, to be read only."""
    return torch.from_dlpack(x) if isinstance(x, jax.Array) else torch.from_numpy(np.array(x))


def to_numpy(x: Tensor) -> NDArray[Any]:
    """An array of the same shape over the same memory; numpy knows bfloat16 through JAX."""
    x = x.detach()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(jax.numpy.bfloat16)
    return x.numpy()
