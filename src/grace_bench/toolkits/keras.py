"""A worker's model in Keras, whatever the backend: weights and statistics from torch's model and back, and a step."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable
from typing import Any

import keras
import torch

from grace.errors import ConfigurationError
from grace.run.options import Granularity
from grace_bench.tasks.words import Carry
from grace_bench.toolkits import keras_models as models
from grace_bench.toolkits.replica import Replica, ReplicaSetup, arrays_of, from_torch, norms_of, pick, to_torch


class KerasReplica(Replica):
    """See :class:`~grace_bench.toolkits.replica.Replica`. A subclass has the compiled step, with Grace's mean in it.

    Raises:
        ConfigurationError: Keras has another backend.
    """

    backend: str

    def __init__(self, recipe: ReplicaSetup):
        if keras.backend.backend() != self.backend:
            raise ConfigurationError(f"Keras's backend is {keras.backend.backend()}; set KERAS_BACKEND={self.backend}")
        keras.utils.set_random_seed(recipe.seed % 2**32)
        make, self.loss_of = pick(
            recipe.task,
            images=lambda: (models.make_resnet20, models.image_loss),
            pairs=lambda: (models.make_ncf, models.pair_loss),
            words=lambda: (models.make_language_model, models.word_loss),
        )
        self.recipe, self.model = recipe, make(recipe.model)
        self.variables = self.model.trainable_variables
        self.names = [name for name, _ in recipe.model.named_parameters()]
        self.decay = list(recipe.decay.values())

    def start(
        self, like: Any, method: str | None = None, *, granularity: Granularity = "parameter", seed: int = 0
    ) -> None:
        for v, (name, p) in zip(self.variables, self.recipe.model.named_parameters(), strict=True):
            v.assign(from_torch(name, p))
        for norm, (_, torchs) in self._norms():
            norm.moving_mean.assign(torchs.running_mean.numpy())
            norm.moving_variance.assign(torchs.running_var.numpy())
        self.optimizer = models.make_optimizer(self.recipe.settings, self.recipe.task.clip)
        self.optimizer.build(self.variables)
        if method is not None:
            self._connect(method, granularity, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sparse gradients of tables are made dense, as in torch
            self._train = self._compile(*self._arguments(like)[:3])

    @abc.abstractmethod
    def _connect(self, method: str, granularity: Granularity, seed: int) -> None:
        """Makes the handle, with a learning rate that is the optimizer's."""

    @abc.abstractmethod
    def _compile(self, inputs: Any, target: Any, state: Any) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
        """A step by the optimizer's learning rate, compiled for such arguments -> the loss before it, the state after."""

    def step(self, batch: Any, index: int) -> float:
        inputs, target, state, carry = self._arguments(batch)
        self.optimizer.learning_rate.assign(self.recipe.rates[index])
        loss, after = self._train(inputs, target, state)
        if carry is not None:
            carry.state = after
        return float(loss)

    def _arguments(self, batch: Any) -> tuple[Any, Any, Any, Carry | None]:
        """The model's inputs, the targets, the state before (None: the model has none), and where that is kept."""
        (*inputs, target), carry = arrays_of(batch)
        state = None if carry is None else carry.state
        if carry is not None and state is None:
            like: Any = self.recipe.model
            state = models.zero_state(like, len(target))
        return [keras.ops.convert_to_tensor(x) for x in inputs], keras.ops.convert_to_tensor(target), state, carry

    def _decayed(self, gradients: Any, values: Any) -> list[Any]:
        return [g + w * v if w else g for g, v, w in zip(gradients, values, self.decay, strict=True)]

    @torch.no_grad()
    def store(self) -> None:
        for v, (name, p) in zip(self.variables, self.recipe.model.named_parameters(), strict=True):
            p.copy_(to_torch(name, keras.ops.convert_to_numpy(v)))
        for norm, (_, torchs) in self._norms():
            for variable, theirs in (
                (norm.moving_mean, torchs.running_mean),
                (norm.moving_variance, torchs.running_var),
            ):
                theirs.copy_(torch.tensor(keras.ops.convert_to_numpy(variable)))

    def _norms(self) -> Any:
        """Keras's norms beside torch's."""
        norms = [x for x in self.model.layers if isinstance(x, keras.layers.BatchNormalization)]
        return zip(norms, norms_of(self.recipe.model), strict=True)
