"""Averages TensorFlow's gradients, for the tape and for Keras's optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import grace as grace_package
from grace.tensorflow import Gradients
from grace.tensorflow.gradients import name_of
from grace_dl import network
from grace_dl.communicator import Communicator
from grace_dl.horovod import common

_made: dict[
    tuple[Any, ...], tuple[Gradients, grace_package.Policy, Any]
] = {}  # by variables and communicator, which stay alive


def average(
    gradients: Sequence[Any], variables: Sequence[Any], grc: Communicator | None, compression: Any = None
) -> list[Any]:
    """The means over the workers. All ranks agree the first time for these variables; in a graph, while it is traced."""
    common.check_start()
    if grc is not None and grc.method is None:  # a part is the user's: tensor by tensor, by TensorFlow's own operations
        pairs = enumerate(zip(gradients, variables, strict=True))
        return [None if g is None else grc.step(tf.convert_to_tensor(g), f"{i}:{name_of(v)}") for i, (g, v) in pairs]
    policy = grace_package.Policy([("*", common.find_method(compression))]) if grc is None else grc.policy
    assert policy is not None
    key = (id(grc), str(compression), *(id(v) for v in variables))
    if key not in _made:
        with tf.init_scope():
            exchange = Gradients(list(variables), policy, transport=network.open_transport())
        _made[key] = (exchange, policy, grc)
    exchange, current, _ = _made[key]
    if policy != current:  # a knob was changed while training; a graph notices that when it is traced again
        exchange.switch(policy)
        _made[key] = (exchange, policy, grc)
    return exchange.mean(gradients)
