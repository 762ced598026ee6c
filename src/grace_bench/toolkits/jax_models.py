"""The tasks' models and losses in plain JAX. Parameters are a dictionary with torch's names; images are [n, h, w, c]."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from torch import nn

from grace_bench.tasks import models

Params = dict[str, Any]


class Network:
    """A loss, as a pure function. ``state`` goes from step to step: statistics of norms, or what an LSTM remembers."""

    def __init__(self, model: nn.Module):
        self.model: Any = model  # torch's: widths, strides and constants are its

    def begin(self, rows: int) -> Any:
        """The state before the first of these rows."""
        return ()

    def loss(self, params: Params, state: Any, arrays: tuple[Any, ...], key: Any) -> tuple[Any, Any]:
        """The mean over the batch, and the state after it."""
        raise NotImplementedError


class ResNet20(Network):
    """See :class:`grace_bench.tasks.models.ResNet20`. Its state are the norms' moving averages, under torch's names."""

    model: models.ResNet20

    def begin(self, rows: int) -> Any:
        return {name: x.numpy() for name, x in self.model.named_buffers() if x.dim()}

    def loss(self, params: Params, state: Any, arrays: tuple[Any, ...], key: Any) -> tuple[Any, Any]:
        images, labels = arrays
        after = dict(state)

        def norm(x: Any, name: str, like: nn.BatchNorm2d) -> Any:
            mean, variance, count = x.mean((0, 1, 2)), x.var((0, 1, 2)), x.size // x.shape[-1]
            for key, value in (("mean", mean), ("var", variance * (count / (count - 1)))):
                before = state[f"{name}.running_{key}"]
                after[f"{name}.running_{key}"] = before + like.momentum * (value - before)
            scale = lax.rsqrt(variance + like.eps) * params.get(f"{name}.weight", 1.0)
            return (x - mean) * scale + params[f"{name}.bias"]

        def conv(x: Any, name: str, stride: int = 1) -> Any:
            return lax.conv_general_dilated(
                x, params[f"{name}.weight"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        x = conv(images.transpose(0, 2, 3, 1), "conv")
        x = jax.nn.relu(norm(x, "norm", self.model.norm))
        blocks: Any = self.model.blocks
        for i, block in enumerate(blocks):
            at, half = f"blocks.{i}", block.more // 2
            shortcut = jnp.pad(x[:, :: block.stride, :: block.stride], [(0, 0)] * 3 + [(half, block.more - half)])
            y = conv(jax.nn.relu(norm(x, f"{at}.norm1", block.norm1)), f"{at}.conv1", block.stride)
            x = shortcut + conv(jax.nn.relu(norm(y, f"{at}.norm2", block.norm2)), f"{at}.conv2")
        x = jax.nn.relu(norm(x, "last", self.model.last)).mean((1, 2))
        logits = x @ params["head.weight"] + params["head.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), after


class NCF(Network):
    """See :class:`grace_bench.tasks.models.NCF`."""

    def loss(self, params: Params, state: Any, arrays: tuple[Any, ...], key: Any) -> tuple[Any, Any]:
        users, items, labels = arrays
        u, v, factors = params["user"][users], params["item"][items], self.model.factors
        hidden = jnp.concatenate([u[:, factors:], v[:, factors:]], axis=1)
        for i in range(len(self.model.layers)):
            hidden = jax.nn.relu(hidden @ params[f"layers.{i}.weight"] + params[f"layers.{i}.bias"])
            hidden = drop(hidden, self.model.dropout, jax.random.fold_in(key, i))
        both = jnp.concatenate([u[:, :factors] * v[:, :factors], hidden], axis=1)
        logits = (both @ params["head.weight"] + params["head.bias"])[:, 0]
        return optax.sigmoid_binary_cross_entropy(logits, labels).mean(), state


class LSTM(Network):
    """See :class:`grace_bench.tasks.models.LSTMLanguageModel`. Its state is each layer's output and cell."""

    def begin(self, rows: int) -> Any:
        zero = jnp.zeros((rows, self.model.hidden))
        return ((zero, zero),) * len(self.model.layers)

    def loss(self, params: Params, state: Any, arrays: tuple[Any, ...], key: Any) -> tuple[Any, Any]:
        tokens, following = arrays
        x = drop(params["embedding"][tokens.T], self.model.dropout, jax.random.fold_in(key, 0))  # [t, n, h]
        after = []
        for i, before in enumerate(state):
            inner, outer = jnp.split(params[f"layers.{i}.kernel"], [x.shape[-1]])

            def cell(carry: Any, given: Any, outer: Any = outer) -> tuple[Any, Any]:
                enter, forget, new, show = jnp.split(given + carry[0] @ outer, 4, axis=-1)
                c = jax.nn.sigmoid(forget) * carry[1] + jax.nn.sigmoid(enter) * jnp.tanh(new)
                h = jax.nn.sigmoid(show) * jnp.tanh(c)
                return (h, c), h

            last, x = lax.scan(cell, before, x @ inner + params[f"layers.{i}.bias"])
            after.append(last)
            x = drop(x, self.model.dropout, jax.random.fold_in(key, 1 + i))
        logits = x @ params["weight"] + params["bias"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, following.T)
        return losses.mean() * len(losses), tuple(after)  # the sum over the sequence, as the original has it


def drop(x: Any, rate: float, key: Any) -> Any:
    """Dropout."""
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0) if rate else x
