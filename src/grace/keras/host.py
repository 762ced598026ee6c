"""From a training step to the host and back, on Keras's backend of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from torch import Tensor

Exchange = Callable[..., Sequence[Tensor]]


def call_host(exchange: Exchange, tensors: Sequence[Any], *numbers: Any) -> list[Any]:
    """Hands tensors of the backend to ``exchange`` on the host. In a graph or program that is being traced the call then
    happens in each step, in the order of tracing.

    Args:
        exchange: ``exchange(tensors, *numbers)``: torch tensors, to be read and not kept; numbers as Python's. It returns a
            tensor of the same shape and dtype for each.
        tensors: of the backend.
        numbers: scalars that travel along.
    """
    backend = keras.backend.backend()
    if backend == "torch":
        return _call_torch(exchange, tensors, *numbers)
    if backend == "tensorflow":
        from grace.tensorflow.calls import call_host as call_tensorflow

        return list(call_tensorflow(exchange, tensors, *numbers))
    from grace.jax.calls import call_host as call_jax

    return list(call_jax(exchange, tensors, *numbers))


def call_when(due: Any, exchange: Callable[[], list[Any]], otherwise: list[Any]) -> list[Any]:
    """``exchange()`` in steps where ``due``, else ``otherwise``: for JAX, where both sides are traced."""
    import jax

    return list(jax.lax.cond(due, exchange, lambda: otherwise))


def make_dense(gradient: Any, dtype: str) -> Any:
    """The gradient as a dense tensor of this dtype: an embedding's may be sparse."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        gradient = tf.convert_to_tensor(gradient)
    return gradient if keras.backend.standardize_dtype(gradient.dtype) == dtype else keras.ops.cast(gradient, dtype)


def wait_for_host() -> None:
    """Waits until all steps started so far have made their exchanges. JAX goes on while they run."""
    if keras.backend.backend() == "jax":
        import jax

        jax.effects_barrier()


def _call_torch(exchange: Exchange, tensors: Sequence[Tensor], *numbers: Any) -> list[Tensor]:
    answers = exchange([x.detach().cpu() for x in tensors], *[float(x) for x in numbers])
    return [answer.to(x.device) for x, answer in zip(tensors, answers, strict=True)]
