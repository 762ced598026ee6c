"""A worker's model in Keras on TensorFlow: one ``tf.function``, with Grace's tape in it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import grace.tensorflow as gt
from grace.run.options import Granularity
from grace.transports.torch_distributed import TorchDistributed
from grace_bench.toolkits.keras import KerasReplica
from grace_bench.toolkits.replica import ReplicaSetup


class TensorFlowReplica(KerasReplica):
    """See :class:`~grace_bench.toolkits.replica.Replica`."""

    backend = "tensorflow"
    handle: gt.Gradients | None = None

    def __init__(self, recipe: ReplicaSetup):
        for limit in (
            tf.config.threading.set_intra_op_parallelism_threads,
            tf.config.threading.set_inter_op_parallelism_threads,
        ):
            try:
                limit(recipe.threads)
            except RuntimeError:  # TensorFlow runs already: it has what the first run in this process gave it
                break
        super().__init__(recipe)

    def _connect(self, method: str, granularity: Granularity, seed: int) -> None:
        self.handle = gt.Gradients(
            [v.value for v in self.variables], method, transport=TorchDistributed(), granularity=granularity, seed=seed,
            learning_rate=lambda: self.optimizer.learning_rate,
        )  # fmt: skip

    def _compile(self, inputs: Any, target: Any, state: Any) -> Any:
        compiled = tf.function(self._step, autograph=False)
        compiled.get_concrete_function(inputs, target, state)
        return compiled

    def _step(self, inputs: Any, target: Any, state: Any) -> tuple[Any, Any]:
        values = [v.value for v in self.variables]
        with tf.GradientTape() as tape:
            after = None
            if state is None:
                out = self.model(inputs[0] if len(inputs) == 1 else inputs, training=True)
            else:
                out, after = self.model(*inputs, state, training=True)
            loss = self.loss_of(out, target)
        gradients = self._decayed(tape.gradient(loss, values), values)
        if self.handle is not None:
            gradients = self.handle.mean(gradients)
        self.optimizer.apply([tf.convert_to_tensor(g) for g in gradients])
        return loss, after
