"""A tape whose gradients are means over all workers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from grace.errors import ConfigurationError
from grace.tensorflow.calls import keep_python
from grace.tensorflow.gradients import Gradients, name_of


class DistributedGradientTape:
    """Wraps a ``tf.GradientTape``: its ``gradient`` returns means over all workers; everything else is the tape's own.

    Args:
        tape: the tape that has recorded the loss.
        gradients: the exchange of the variables' gradients, made once, outside of the step.

    Example::

        gradients = gt.Gradients(model.trainable_variables, "topk:ratio=0.01")

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(model(x), y)
            tape = gt.DistributedGradientTape(tape, gradients)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    """

    def __init__(self, tape: Any, gradients: Gradients):
        self._tape, self._gradients = tape, gradients

    @keep_python
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        *,
        scale: Any = 1.0,
    ) -> Any:
        """The means over all workers of the gradients of ``target``, in the structure of ``sources``.

        Args:
            target: the loss.
            sources: the variables that ``gradients`` was made with, in their order.
            output_gradients: as for ``tf.GradientTape.gradient``.
            unconnected_gradients: likewise.
            scale: see :meth:`Gradients.mean`.

        Raises:
            ConfigurationError: other variables, or another order.
            What :meth:`Gradients.mean` raises.
        """
        flat = tf.nest.flatten(sources)
        self._check(flat)
        own = tf.nest.flatten(self._tape.gradient(target, flat, output_gradients, unconnected_gradients))
        return tf.nest.pack_sequence_as(sources, self._gradients.mean(own, scale=scale))

    def _check(self, sources: list[Any]) -> None:
        known = self._gradients.variables
        if list(map(_identify, sources)) == list(map(_identify, known)):
            return
        ids = set(map(_identify, known))
        strange = [name_of(v) for v in sources if _identify(v) not in ids]
        what = f"{', '.join(map(repr, strange))} not among them" if strange else f"{len(sources)} in another order"
        raise ConfigurationError(
            f"tape.gradient must be asked for the {len(known)} variables that Gradients was made with, in their order; got "
            f"{what}. Make Gradients with what is trained, after the model is built"
        )

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)


def _identify(variable: Any) -> int:
    """A Keras variable wraps one of TensorFlow's: either will do."""
    inner = getattr(variable, "value", None)
    return id(variable if inner is None or callable(inner) else inner)
