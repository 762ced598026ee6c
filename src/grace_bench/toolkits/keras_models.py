"""The tasks' models in Keras, on any of its backends, with their losses. Variables come in the order of torch's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers, ops

from grace_bench.tasks import models
from grace_bench.tasks.models.layers import BatchNorm


def make_resnet20(like: models.ResNet20Model) -> keras.Model:
    """See :class:`grace_bench.tasks.models.ResNet20Model`: images ``[n, 3, 32, 32]`` -> logits ``[n, classes]``."""

    def norm(x: Any, like: BatchNorm) -> Any:
        assert like.momentum is not None
        scaled = like.weight is not None
        return layers.BatchNormalization(momentum=1 - like.momentum, epsilon=like.eps, scale=scaled)(x)

    def conv(x: Any, like: Any) -> Any:
        return layers.Conv2D(like.out_channels, 3, like.stride, "same", "channels_last", use_bias=False)(x)

    images = keras.Input((like.conv.in_channels, 32, 32))
    x = ops.relu(norm(conv(ops.transpose(images, (0, 2, 3, 1)), like.conv), like.norm))
    blocks: Any = like.blocks
    for block in blocks:
        half = block.more // 2
        shortcut = x[:, :: block.stride, :: block.stride]
        if block.more:
            shortcut = ops.pad(shortcut, [(0, 0)] * 3 + [(half, block.more - half)])
        inner = conv(ops.relu(norm(x, block.norm1)), block.conv1)
        x = shortcut + conv(ops.relu(norm(inner, block.norm2)), block.conv2)
    x = ops.mean(ops.relu(norm(x, like.last)), (1, 2))
    return keras.Model(images, layers.Dense(like.head.out_features)(x))


def make_ncf(like: models.NCFModel) -> keras.Model:
    """See :class:`grace_bench.tasks.models.NCFModel`: users ``[n]`` and items ``[n]`` -> logits ``[n, 1]``."""
    users, items = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
    u, v = layers.Embedding(*like.user.shape)(users), layers.Embedding(*like.item.shape)(items)
    hidden = ops.concatenate([u[:, like.factors :], v[:, like.factors :]], axis=1)
    for layer in like.layers:
        hidden = layers.Dropout(like.dropout)(layers.Dense(layer.out_features, "relu")(hidden))
    both = ops.concatenate([u[:, : like.factors] * v[:, : like.factors], hidden], axis=1)
    return keras.Model([users, items], layers.Dense(1)(both))


class LSTMLayer(layers.Layer):  # type: ignore[misc]
    """``[t, n, inputs]`` -> outputs ``[t, n, h]``, and the last output and cell: one kernel and one bias, gates in torch's
    order. ``keras.layers.LSTM`` has two kernels.
    """

    def __init__(self, hidden: int):
        super().__init__()
        self.units = hidden

    def build(self, shape: Any, *_: Any) -> None:
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1] + self.units, 4 * self.units))
        self.bias = self.add_weight(name="bias", shape=(4 * self.units,))

    def call(self, x: Any, before: Any) -> tuple[Any, Any]:
        inner, outer = ops.split(self.kernel, [x.shape[-1]])

        def cell(carry: Any, given: Any) -> tuple[Any, Any]:
            enter, forget, new, show = ops.split(given + ops.matmul(carry[0], outer), 4, axis=-1)
            c = ops.sigmoid(forget) * carry[1] + ops.sigmoid(enter) * ops.tanh(new)
            after = ops.sigmoid(show) * ops.tanh(c), c
            return after, after

        last, (out, _) = ops.scan(cell, before, ops.matmul(x, inner) + self.bias)
        return out, last


class KerasLanguageModel(keras.Model):  # type: ignore[misc]
    """See :class:`grace_bench.tasks.models.LSTMLanguageModel`: words ``[n, t]`` and the state before them -> logits
    ``[n, t, words]`` and the state after, which is each layer's last output and cell.
    """

    def __init__(self, like: models.LSTMLanguageModel):
        super().__init__()
        words, hidden = like.embedding.shape
        self.embedding = layers.Embedding(words, hidden)  # torch's order: the model's own come first
        self.head = layers.Dense(words)
        self.inner = [LSTMLayer(hidden) for _ in like.layers]
        self.dropout = layers.Dropout(like.dropout)

    def call(self, tokens: Any, state: Any, training: bool = False) -> tuple[Any, Any]:
        x, after = self.dropout(self.embedding(ops.transpose(tokens)), training=training), []
        for layer, before in zip(self.inner, state, strict=True):
            x, last = layer(x, before)
            x = self.dropout(x, training=training)
            after.append(last)
        return ops.transpose(self.head(x), (1, 0, 2)), after


def make_language_model(like: models.LSTMLanguageModel) -> keras.Model:
    """A :class:`KerasLanguageModel` with its variables."""
    model = KerasLanguageModel(like)
    model(ops.zeros((1, 1), "int64"), zero_state(like, 1))
    return model


def zero_state(like: models.LSTMLanguageModel, rows: int) -> list[tuple[Any, Any]]:
    """The state before the first of these rows."""
    return [(ops.zeros((rows, like.hidden)), ops.zeros((rows, like.hidden))) for _ in like.layers]


def image_loss(logits: Any, labels: Any) -> Any:
    """The mean over the batch."""
    return ops.mean(ops.sparse_categorical_crossentropy(labels, logits, from_logits=True))


def pair_loss(logits: Any, labels: Any) -> Any:
    """The mean over the batch."""
    return ops.mean(ops.binary_crossentropy(labels, logits[:, 0], from_logits=True))


def word_loss(logits: Any, following: Any) -> Any:
    """The mean over the batch of the sum over the sequence, as the original has it."""
    return image_loss(logits, following) * following.shape[1]


class TorchMomentum(keras.optimizers.Optimizer):  # type: ignore[misc]
    """SGD as torch and the survey's programs have it. Keras's keeps the learning rate in the velocity, so that after a
    change of the rate both differ.
    """

    def __init__(self, momentum: float, nesterov: bool, **options: Any):
        super().__init__(1.0, **options)
        self.momentum, self.nesterov, self.velocities = momentum, nesterov, list[Any]()

    def build(self, variables: Sequence[Any]) -> None:
        super().build(variables)
        self.velocities = self.add_optimizer_variables(variables, "velocity") if self.momentum else []

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if self.momentum:
            velocity = self.velocities[self._get_variable_index(variable)]
            self.assign(velocity, self.momentum * velocity + gradient)
            gradient = gradient + self.momentum * velocity if self.nesterov else velocity
        self.assign_sub(variable, learning_rate * gradient)


def make_optimizer(settings: dict[str, Any], clip: float | None) -> keras.optimizers.Optimizer:
    """The equivalent of torch's optimizer with these settings; it cuts all gradients together down to this norm."""
    if "betas" in settings:
        return keras.optimizers.Adam(1.0, *settings["betas"], settings["eps"], global_clipnorm=clip or None)
    return TorchMomentum(settings["momentum"], settings["nesterov"], name="momentum", global_clipnorm=clip or None)
