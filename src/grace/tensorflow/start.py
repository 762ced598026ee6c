"""Gives all ranks the same numbers to start with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
import torch
from torch import Tensor

from grace.collectives import Broadcast
from grace.errors import InputError, out_of_range
from grace.tensorflow.calls import call_host, keep_python
from grace.tensorflow.gradients import name_of
from grace.transports.agreement import agree
from grace.transports.base import Transport
from grace.transports.choose import transport as choose_transport


@keep_python
def broadcast_variables(variables: Sequence[Any], root_rank: int = 0, *, transport: Transport | str = "auto") -> None:
    """Gives all ranks the numbers that these variables have on rank ``root_rank``; in eager mode and in graphs.

    Call it once the variables exist: those of the model, and those of the optimizer, after ``optimizer.build(variables)``.

    Args:
        variables: ``tf.Variable`` or Keras's, of numbers of any kind; the same on all ranks.
        root_rank: the rank whose numbers all get.
        transport: between the ranks: a transport, its name, or "auto"; see :func:`grace.transport`.

    Raises:
        ConfigurationError: no such rank, or XLA compiles the graph (``jit_compile=True``).
        InputError: a variable that does not hold numbers.
        FingerprintMismatch: ranks with other variables, on every rank.
        TransportError: a rank has left.
    """
    network = choose_transport(transport)
    try:
        if type(root_rank) is not int or not 0 <= root_rank < network.world:
            raise out_of_range("broadcast_variables", "root_rank", root_rank, f"0 to {network.world - 1}")
        kept = [v for v in variables if tf.TensorShape(v.shape).num_elements() != 0]
        for v in kept:
            if not (tf.as_dtype(v.dtype).is_numpy_compatible and tf.as_dtype(v.dtype).size):
                raise InputError(f"{name_of(v)!r} is {tf.as_dtype(v.dtype).name}; legal: numbers")
        kinds = [(name_of(v), tf.as_dtype(v.dtype).name, tuple(v.shape)) for v in kept]
        agree({"root_rank": str(root_rank), **{f"variable {i}": str(kind) for i, kind in enumerate(kinds)}}, network)

        def exchange(lent: Sequence[Tensor]) -> list[Tensor]:
            local = torch.cat([x.reshape(-1).view(torch.uint8) for x in lent])
            return list(_split(network.run(Broadcast(local, root_rank)), lent))

        if kept:
            values = call_host(exchange, [tf.convert_to_tensor(v) for v in kept])
            for v, value in zip(kept, values, strict=True):
                v.assign(value)
    except BaseException as error:
        network.close(error)
        raise
    if isinstance(transport, str) and tf.executing_eagerly():
        network.close()  # a graph needs it in each run


def _split(raw: Tensor, like: Sequence[Tensor]) -> Iterator[Tensor]:
    sizes = [x.numel() * x.element_size() for x in like]
    for part, x in zip(raw.split_with_sizes(sizes), like, strict=True):
        yield part.clone().view(x.dtype).view(x.shape)  # a piece from the middle may not be aligned
