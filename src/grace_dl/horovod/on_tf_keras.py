"""``hvd.DistributedOptimizer`` of Keras on TensorFlow: tf_keras, which is Keras 2, or Keras 3."""

from __future__ import annotations

from typing import Any

from grace_dl.communicator import Communicator
from grace_dl.horovod.averaging import average


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any, *args: Any, grace: Any = None, compression: Any = None, **knobs: Any
) -> Any:
    """Makes this optimizer apply the means over the workers, and returns it.

    Args:
        optimizer: of Keras.
        *args: a GRACE communicator may be among them; Grace has no use for Horovod's others.
        grace: a GRACE communicator; without one nothing is compressed.
        compression: ``hvd.Compression.none`` or ``.fp16``; not beside ``grace``.
        **knobs: Horovod's others, which Grace has no use for.
    """
    grace = next((argument for argument in args if isinstance(argument, Communicator)), grace)
    legacy = not hasattr(optimizer, "apply")
    own = optimizer.apply_gradients if legacy else optimizer.apply

    def apply_gradients(grads_and_vars: Any, *args: Any, **knobs: Any) -> Any:
        pairs = [(g, v) for g, v in grads_and_vars]
        means = average([g for g, _ in pairs], [v for _, v in pairs], grace, compression)
        return own(list(zip(means, (v for _, v in pairs), strict=True)), *args, **knobs)

    def apply(gradients: Any, trainable_variables: Any = None) -> Any:
        variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        return own(average(list(gradients), variables, grace, compression), trainable_variables)

    # On the instance, past Keras's tracking of attributes: class and configuration stay Keras's, and so do saved models.
    vars(optimizer)["apply_gradients" if legacy else "apply"] = apply_gradients if legacy else apply
    return optimizer
