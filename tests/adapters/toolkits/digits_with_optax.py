"""A rank that trains a ConvNet of flax on the digits through optax, once with each method: ``digits_with_optax.py SEED``."""

from __future__ import annotations

import functools
import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import grace.jax
from tests.adapters.toolkits.digits import BATCH, EPOCHS, METHODS, MOMENTUM, PEAK, SAMPLES, STEPS, WARM, load, tell

jax.config.update("jax_default_prng_impl", "rbg")  # the default takes seconds more to compile


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        start = nn.initializers.glorot_uniform()  # as in Keras
        for channels in (32, 64):
            x = nn.max_pool(nn.relu(nn.Conv(channels, (3, 3), kernel_init=start)(x)), (2, 2), (2, 2))
        x = nn.relu(nn.Dense(64, kernel_init=start)(x.reshape(len(x), -1)))
        return nn.Dense(10, kernel_init=start)(x)


def train(method: str, start: Any, seed: int) -> None:
    params = grace.jax.broadcast_params(start)
    mean, handle = grace.jax.compressed_mean_on_host(method, params)
    optimizer = optax.chain(mean, optax.sgd(optax.warmup_cosine_decay_schedule(0.0, PEAK, WARM, STEPS), MOMENTUM))
    data = load(handle.rank)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    state, random = optimizer.init(params), np.random.default_rng((seed, handle.rank))
    for _ in range(EPOCHS):
        for batch in np.split(random.permutation(SAMPLES), SAMPLES // BATCH):
            params, state = step(params, state, data.x[batch], data.y[batch])
    accuracy = (predict(params, data.test_x).argmax(1) == data.test_y).mean()
    tell(method, float(accuracy), handle)
    handle.close()


model = ConvNet()
predict = jax.jit(model.apply)
beginning = jax.jit(model.init)(jax.random.key(int(sys.argv[1])), jnp.zeros((1, 8, 8, 1)))
for name in METHODS:
    train(name, beginning, seed=int(sys.argv[1]))
