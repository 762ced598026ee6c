"""The names of ``horovod.tensorflow``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from torch import Tensor

from grace.errors import ConfigurationError
from grace.tensorflow import broadcast_variables as share
from grace.tensorflow.calls import call_host, keep_python
from grace_dl.communicator import Communicator, Lasting
from grace_dl.horovod import common
from grace_dl.horovod.averaging import average
from grace_dl.horovod.common import *  # noqa: F403
from grace_dl.horovod.common import Compression, allgather_object, broadcast_object, transport
from grace_dl.horovod.on_tf_keras import DistributedOptimizer

__all__ = [
    *common.__all__,
    "Compression", "DistributedGradientTape", "DistributedOptimizer", "allgather", "allgather_object", "allreduce",
    "broadcast", "broadcast_global_variables", "broadcast_object", "broadcast_variables", "rank_op", "size_op",
    "_allgather", "_allreduce",
]  # fmt: skip


class DistributedGradientTape:
    """A tape whose gradients are means over the workers.

    Args:
        gradtape: a ``tf.GradientTape``.
        grace: a GRACE communicator; without one nothing is compressed. It may also be any of the further arguments.
        compression: ``hvd.Compression.none`` or ``.fp16``; not beside ``grace``.
        *args: Horovod's others, which Grace has no use for.
        **knobs: likewise.
    """

    def __init__(self, gradtape: Any, *args: Any, grace: Any = None, compression: Any = None, **knobs: Any):
        grace = next((argument for argument in args if isinstance(argument, Communicator)), grace)
        self._tape, self._grc, self._compression = gradtape, grace, compression

    @keep_python
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **knobs: Any) -> Any:
        """The means over the workers of the gradients of ``target``, in the structure of ``sources``."""
        flat = tf.nest.flatten(sources)
        own = tf.nest.flatten(self._tape.gradient(target, flat, output_gradients, *args, **knobs))
        return tf.nest.pack_sequence_as(sources, average(own, flat, self._grc, self._compression))

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)


@keep_python
def allreduce(tensor: Any, average: bool | None = None, name: str | None = None, op: Any = None, **knobs: Any) -> Any:
    """The mean over the workers, or what ``op`` says."""
    common.find_method(knobs.get("compression"))
    return _call(lambda x: common.allreduce(x, average, op), tensor)


@keep_python
def allgather(tensor: Any, name: str | None = None, **knobs: Any) -> Any:
    """Everyone's tensors one after the other; their first dimensions may differ."""
    x = tf.convert_to_tensor(tensor)
    return _call(common.allgather, x, tf.TensorSpec([None, *x.shape[1:]], x.dtype))


@keep_python
def broadcast(tensor: Any, root_rank: int, name: str | None = None, **knobs: Any) -> Any:
    """The root's tensor."""
    return _call(lambda x: common.broadcast(x, root_rank), tensor)


@keep_python
def broadcast_variables(variables: Any, root_rank: int = 0, *args: Any, **knobs: Any) -> None:
    """Gives all ranks the root's numbers."""
    given = list(variables() if callable(variables) else variables)
    share([v for v in given if tf.as_dtype(v.dtype).size], root_rank, transport=Lasting(transport()))


def broadcast_global_variables(root_rank: int) -> None:
    """A function of TensorFlow 1.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(
        "broadcast_global_variables is of TensorFlow 1, whose graphs do not run on TensorFlow 2; use "
        "hvd.broadcast_variables(model.variables, root_rank=0)"
    )


def rank_op(*args: Any, **knobs: Any) -> Any:
    """Rank of this worker, as a tensor."""
    return tf.constant(common.rank())


def size_op(*args: Any, **knobs: Any) -> Any:
    """Number of workers, as a tensor."""
    return tf.constant(common.size())


def _allreduce(tensor: Any, name: str | None = None, op: Any = common.Sum, **knobs: Any) -> Any:
    """The sum, by the name that GRACE's compressors use."""
    return allreduce(tensor, op=op)


_allgather = allgather


def _call(function: Callable[[Tensor], Tensor], tensor: Any, like: Any = None) -> Any:
    x = tf.convert_to_tensor(tensor)
    return call_host(lambda xs: [function(xs[0]).contiguous()], [x], like=[x if like is None else like])[0]
