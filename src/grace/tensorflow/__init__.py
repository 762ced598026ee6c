"""TensorFlow 2's door: gradients averaged over all workers, in eager mode and in ``tf.function``.

::

    import grace.tensorflow as gt

    gradients = gt.Gradients(model.trainable_variables, "topk:ratio=0.01")
    tape = gt.DistributedGradientTape(tape, gradients)
"""

from __future__ import annotations

from grace.errors import ConfigurationError

try:
    import tensorflow as _tensorflow  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "tensorflow":
        raise  # it is installed, but something that it imports is not
    raise ConfigurationError(
        "grace.tensorflow needs tensorflow, which is not installed: pip install 'grace-dl[tensorflow]'"
    ) from _error

from grace.tensorflow.calls import call_host
from grace.tensorflow.gradients import Gradients
from grace.tensorflow.start import broadcast_variables
from grace.tensorflow.tape import DistributedGradientTape

__all__ = ["DistributedGradientTape", "Gradients", "broadcast_variables", "call_host"]
