"""From a training step to the host and back: all tensors of a step in one call, which fixes their order on all ranks.

TensorFlow's tensors and torch's share memory by DLPack. What TensorFlow lends is read and never written: it may be a
constant of the graph, or a variable's own buffer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import tensorflow as tf
import torch
from torch import Tensor

from grace.errors import ConfigurationError, GraceError

F = TypeVar("F", bound=Callable[..., Any])
_HOST = "/device:CPU:0"


def keep_python(function: F) -> F:
    """A function that AutoGraph leaves alone when a ``tf.function`` calls it, and whose errors arrive unchanged: AutoGraph
    would turn them into others, with its own text.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except GraceError as error:
            error.ag_pass_through = True  # type: ignore[attr-defined]
            raise

    return cast(F, tf.autograph.experimental.do_not_convert(call))


@keep_python
def call_host(
    exchange: Callable[..., Sequence[Tensor]],
    tensors: Sequence[Any],
    *numbers: Any,
    like: Sequence[Any] | None = None,
) -> list[Any]:
    """``exchange(tensors, *numbers)`` on the host: now, or, while a graph is traced, in each of its runs, in the order of
    tracing.

    Args:
        exchange: takes a list of torch tensors, which it may read, but not write or keep, and the numbers as Python's.
            TensorFlow gets its results without a copy: they must not be written afterwards.
        tensors: TensorFlow's.
        numbers: scalars that travel along: Python's, tensors or variables.
        like: tensors with the shapes and dtypes of the answers, by default ``tensors``.

    Raises:
        ConfigurationError: the graph is compiled by XLA, which cannot call the host.

    No gradient goes through it: that of an answer is None.
    """
    tensors, like = list(tensors), list(tensors if like is None else like)
    count = len(tensors)
    if tf.executing_eagerly():
        answers = exchange([to_torch(_on_host(x)) for x in tensors], *map(_read_number, numbers))
        return [to_tensorflow(x) for x in answers]
    refuse_xla()

    def run(*args: Any) -> list[Any]:
        answers = exchange([to_torch(x) for x in args[:count]], *map(_read_number, args[count:]))
        return [to_tensorflow(x) for x in answers]

    with tf.device(_HOST):
        given = [
            *map(tf.stop_gradient, tensors),
            *(tf.cast(tf.convert_to_tensor(number), tf.float64) for number in numbers),
        ]
        answers = tf.py_function(run, given, [tf.as_dtype(x.dtype) for x in like])  # stateful: a graph keeps the order
    for answer, x in zip(answers, like, strict=True):
        answer.set_shape(x.shape)
    return list(answers)


def to_torch(x: Any) -> Tensor:
    """A tensor of TensorFlow's as torch's, in the same memory: never write it."""
    return torch.from_dlpack(x)


def to_tensorflow(x: Tensor) -> Any:
    """A tensor of torch's as TensorFlow's, in the same shape and memory, which TensorFlow then holds."""
    return tf.experimental.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))


def refuse_xla() -> None:
    """Refuses to be traced into a graph that XLA compiles: that would fail when it runs, and only say ``EagerPyFunc``.

    Raises:
        ConfigurationError: it is one.
    """
    if _in_xla():
        raise ConfigurationError(
            "jit_compile=True: XLA compiles this step, and a program of XLA cannot call the host, where gradients are "
            "exchanged. Leave jit_compile out around the exchange: compile the forward and backward pass in a tf.function "
            "of its own, and call that from the step"
        )


def refuse_replicas() -> None:
    """Refuses several replicas in one process.

    Raises:
        ConfigurationError: ``tf.distribute`` runs several.
    """
    if tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise ConfigurationError(
                f"{type(strategy).__name__} has {strategy.num_replicas_in_sync} replicas, and would average gradients itself; "
                "with Grace one process is one replica: start one process for each device, without tf.distribute"
            )


def _in_xla() -> bool:
    if tf.executing_eagerly():
        return False
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:  # not public; XLA itself refuses the call when it runs
        return False
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def _on_host(x: Any) -> Any:
    if "CPU" in x.device:
        return x
    with tf.device(_HOST):
        return tf.identity(x)


def _read_number(x: Any) -> float:
    return float(x.numpy() if hasattr(x, "numpy") else x)
