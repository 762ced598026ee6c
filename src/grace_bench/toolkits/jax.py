"""A worker's model in JAX: one jitted step, with Grace's mean as the first of a chain of optax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from grace.jax import compressed_mean_on_host
from grace.run.options import Granularity
from grace.transports.torch_distributed import TorchDistributed
from grace_bench.tasks.words import Carry
from grace_bench.toolkits import jax_models
from grace_bench.toolkits.replica import Recipe, Replica, arrays_of, from_torch, pick, to_torch


class JaxReplica(Replica):
    """See :class:`~grace_bench.toolkits.replica.Replica`."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        kind = pick(
            recipe.task, images=lambda: jax_models.ResNet20, pairs=lambda: jax_models.NCF, words=lambda: jax_models.LSTM
        )
        self.network: jax_models.Network = kind(recipe.model)
        self.decay = recipe.decay
        self.key = jax.random.key(recipe.seed)

    def start(
        self, like: Any, method: str | None = None, *, granularity: Granularity = "parameter", seed: int = 0
    ) -> None:
        params = {name: from_torch(name, p) for name, p in self.recipe.model.named_parameters()}
        chain = []
        if method is not None:
            rates = jnp.asarray(self.recipe.rates, jnp.float32)
            mean, self.handle = compressed_mean_on_host(
                method, params, transport=TorchDistributed(), learning_rate=lambda count: rates[count], seed=seed
            )
            chain.append(mean)
        if self.recipe.task.clip:
            chain.append(optax.clip_by_global_norm(self.recipe.task.clip))
        self.optimizer = optax.chain(*chain, _scale(self.recipe.settings))
        self.params = jax.tree.map(jnp.asarray, params)
        self.state = self.optimizer.init(self.params)
        self.carried: Any = None
        self._train: Any = jax.jit(self._step).lower(*self._arguments(like, 0)[0]).compile()

    def step(self, batch: Any, index: int) -> float:
        arguments, carry = self._arguments(batch, index)
        self.params, self.state, after, loss = jax.block_until_ready(self._train(*arguments))
        if carry is None:
            self.carried = after
        else:
            carry.state = after
        return float(loss)

    def _arguments(self, batch: Any, index: int) -> tuple[tuple[Any, ...], Carry | None]:
        arrays, carry = arrays_of(batch)
        before = self.carried if carry is None else carry.state
        if before is None:
            before = self.network.begin(len(arrays[0]))
        rate, key = jnp.float32(self.recipe.rates[index]), jax.random.fold_in(self.key, index)
        return (self.params, self.state, before, tuple(map(jnp.asarray, arrays)), rate, key), carry

    def _step(self, params: Any, state: Any, before: Any, arrays: Any, rate: Any, key: Any) -> tuple[Any, ...]:
        (loss, after), gradients = jax.value_and_grad(self.network.loss, has_aux=True)(params, before, arrays, key)
        gradients = {name: g + self.decay[name] * params[name] for name, g in gradients.items()}
        updates, state = self.optimizer.update(gradients, state, params)
        return jax.tree.map(lambda p, u: p - rate * u, params, updates), state, after, loss

    @torch.no_grad()
    def store(self) -> None:
        for name, p in self.recipe.model.named_parameters():
            p.copy_(to_torch(name, np.asarray(self.params[name])))
        if isinstance(self.carried, Mapping):  # the norms' statistics
            buffers = dict(self.recipe.model.named_buffers())
            for name, value in self.carried.items():
                buffers[name].copy_(torch.from_numpy(np.array(value)))


def _scale(settings: dict[str, Any]) -> optax.GradientTransformation:
    """What torch's optimizer does to a gradient before it multiplies with the learning rate."""
    if "betas" in settings:
        return optax.scale_by_adam(*settings["betas"], settings["eps"])
    momentum = settings["momentum"]
    return optax.trace(momentum, settings["nesterov"]) if momentum else optax.identity()
