"""A worker's model in Keras on TensorFlow: one ``tf.function``, with Grace's tape in it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
import torch

import grace.tensorflow as gt
from grace.errors import ConfigurationError
from grace.run.options import Granularity
from grace.transports.torch_distributed import TorchDistributed
from grace_bench.tasks.words import Carry
from grace_bench.toolkits import tensorflow_models
from grace_bench.toolkits.replica import Recipe, Replica, arrays_of, from_torch, norms_of, pick, to_torch


class TensorFlowReplica(Replica):
    """See :class:`~grace_bench.toolkits.replica.Replica`.

    Raises:
        ConfigurationError: Keras has another backend than TensorFlow.
    """

    handle: gt.Gradients | None = None

    def __init__(self, recipe: Recipe):
        if keras.backend.backend() != "tensorflow":
            raise ConfigurationError(f"Keras's backend is {keras.backend.backend()}; set KERAS_BACKEND=tensorflow")
        for limit in (
            tf.config.threading.set_intra_op_parallelism_threads,
            tf.config.threading.set_inter_op_parallelism_threads,
        ):
            try:
                limit(recipe.threads)
            except RuntimeError:  # TensorFlow runs already: it has what the first run in this process gave it
                break
        keras.utils.set_random_seed(recipe.seed % 2**32)
        self.recipe = recipe
        kind: Any = pick(
            recipe.task,
            images=lambda: tensorflow_models.ResNet20,
            pairs=lambda: tensorflow_models.NCF,
            words=lambda: tensorflow_models.LSTM,
        )
        self.network: tensorflow_models.Network = kind(recipe.model)
        self.variables = [v.value for v in self.network.model.trainable_variables]
        self.decay = list(recipe.decay.values())
        self.rate = tf.Variable(0.0)

    def start(
        self, like: Any, method: str | None = None, *, granularity: Granularity = "parameter", seed: int = 0
    ) -> None:
        for v, (name, p) in zip(self.variables, self.recipe.model.named_parameters(), strict=True):
            v.assign(from_torch(name, p))
        for norm, (_, torchs) in self._norms():
            norm.moving_mean.assign(torchs.running_mean.numpy())
            norm.moving_variance.assign(torchs.running_var.numpy())
        if method is not None:
            self.handle = gt.Gradients(
                self.variables, method, transport=TorchDistributed(), granularity=granularity, seed=seed,
                learning_rate=lambda: self.rate,
            )  # fmt: skip
        self._optimizer: _Adam | _Momentum = (_Adam if "betas" in self.recipe.settings else _Momentum)(
            self.variables, self.recipe.settings
        )
        self._train = tf.function(self._step, autograph=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sparse gradients of tables are made dense, as in torch
            self._train.get_concrete_function(*self._arguments(like)[0])

    def step(self, batch: Any, index: int) -> float:
        arguments, carry = self._arguments(batch)
        self.rate.assign(self.recipe.rates[index])
        loss, after = self._train(*arguments)
        if carry is not None:
            carry.state = after
        return float(loss.numpy())

    def _arguments(self, batch: Any) -> tuple[tuple[list[Any], list[Any]], Carry | None]:
        arrays, carry = arrays_of(batch)
        state = None if carry is None else carry.state
        if state is None:
            state = self.network.begin(len(arrays[0]))
        return ([tf.convert_to_tensor(x) for x in arrays], state), carry

    def _step(self, arrays: Sequence[Any], state: list[Any]) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss, after = self.network.loss(arrays, state)
        gradients = tape.gradient(loss, self.variables)
        gradients = [g + w * v if w else g for g, v, w in zip(gradients, self.variables, self.decay, strict=True)]
        if self.handle is not None:
            gradients = self.handle.mean(gradients)
        if self.recipe.task.clip:
            gradients, _ = tf.clip_by_global_norm(gradients, self.recipe.task.clip)
        self._optimizer.apply([tf.convert_to_tensor(g) for g in gradients], self.rate)
        return loss, after

    @torch.no_grad()
    def store(self) -> None:
        for v, (name, p) in zip(self.variables, self.recipe.model.named_parameters(), strict=True):
            p.copy_(to_torch(name, v.numpy()))
        for norm, (_, torchs) in self._norms():
            torchs.running_mean.copy_(torch.from_numpy(norm.moving_mean.numpy()))
            torchs.running_var.copy_(torch.from_numpy(norm.moving_variance.numpy()))

    def _norms(self) -> Any:
        """Keras's norms beside torch's."""
        norms = [x for x in self.network.model.layers if isinstance(x, keras.layers.BatchNormalization)]
        return zip(norms, norms_of(self.recipe.model), strict=True)


class _Momentum:
    """SGD as torch and the survey's programs have it. Keras's keeps the learning rate in the velocity, so that after a
    change of the rate both differ.
    """

    def __init__(self, variables: Sequence[Any], settings: dict[str, Any]):
        self.momentum, self.nesterov = settings["momentum"], settings["nesterov"]
        self.variables = variables
        self.velocities = [tf.Variable(tf.zeros_like(v)) for v in variables] if self.momentum else []

    def apply(self, gradients: list[Any], rate: Any) -> None:
        """One step."""
        if self.momentum:
            own = [u.assign(self.momentum * u + g) for u, g in zip(self.velocities, gradients, strict=True)]
            ahead = [g + self.momentum * u for g, u in zip(gradients, own, strict=True)]
            gradients = ahead if self.nesterov else own
        for v, g in zip(self.variables, gradients, strict=True):
            v.assign_sub(rate * g)


class _Adam:
    """Keras's Adam, on these variables."""

    def __init__(self, variables: Sequence[Any], settings: dict[str, Any]):
        self.variables = variables
        first, second = settings["betas"]
        self.optimizer = keras.optimizers.Adam(1.0, first, second, settings["eps"])
        self.optimizer.build(variables)

    def apply(self, gradients: list[Any], rate: Any) -> None:
        """One step."""
        self.optimizer.learning_rate.assign(rate)
        self.optimizer.apply(gradients)
