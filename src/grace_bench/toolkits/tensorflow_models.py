"""The tasks' models in Keras, with their losses. Variables come in the order of torch's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from grace_bench.tasks import models
from grace_bench.tasks.models.layers import BatchNorm


class Network:
    """A Keras model and its loss. ``state`` is what an LSTM remembers from step to step; others have none."""

    model: keras.Model

    def begin(self, rows: int) -> list[Any]:
        """The state before the first of these rows."""
        return []

    def loss(self, arrays: Sequence[Any], state: list[Any]) -> tuple[Any, list[Any]]:
        """The mean over the batch, and the state after it."""
        raise NotImplementedError


class ResNet20(Network):
    """See :class:`grace_bench.tasks.models.ResNet20`."""

    def __init__(self, like: models.ResNet20):
        def norm(x: Any, like: BatchNorm) -> Any:
            assert like.momentum is not None
            return layers.BatchNormalization(
                momentum=1 - like.momentum, epsilon=like.eps, scale=like.weight is not None
            )(x)

        def conv(x: Any, like: Any) -> Any:
            return layers.Conv2D(like.out_channels, 3, like.stride, "same", use_bias=False)(x)

        images = keras.Input((32, 32, like.conv.in_channels))
        x = ops.relu(norm(conv(images, like.conv), like.norm))
        blocks: Any = like.blocks
        for block in blocks:
            half = block.more // 2
            shortcut = x[:, :: block.stride, :: block.stride]
            if block.more:
                shortcut = ops.pad(shortcut, [(0, 0)] * 3 + [(half, block.more - half)])
            inner = conv(ops.relu(norm(x, block.norm1)), block.conv1)
            x = shortcut + conv(ops.relu(norm(inner, block.norm2)), block.conv2)
        x = layers.GlobalAveragePooling2D()(ops.relu(norm(x, like.last)))
        self.model = keras.Model(images, layers.Dense(like.head.out_features)(x))

    def loss(self, arrays: Sequence[Any], state: list[Any]) -> tuple[Any, list[Any]]:
        images, labels = arrays
        logits = self.model(tf.transpose(images, (0, 2, 3, 1)), training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)), state


class NCF(Network):
    """See :class:`grace_bench.tasks.models.NCF`."""

    def __init__(self, like: models.NCF):
        users, items = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
        u, v = layers.Embedding(*like.user.shape)(users), layers.Embedding(*like.item.shape)(items)
        hidden = ops.concatenate([u[:, like.factors :], v[:, like.factors :]], axis=1)
        for layer in like.layers:
            hidden = layers.Dropout(like.dropout)(layers.Dense(layer.out_features, "relu")(hidden))
        both = ops.concatenate([u[:, : like.factors] * v[:, : like.factors], hidden], axis=1)
        self.model = keras.Model([users, items], layers.Dense(1)(both))

    def loss(self, arrays: Sequence[Any], state: list[Any]) -> tuple[Any, list[Any]]:
        users, items, labels = arrays
        logits = self.model([users, items], training=True)[:, 0]
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)), state


class Cell(layers.Layer):  # type: ignore[misc]
    """One LSTM cell with one kernel and one bias, gates in torch's order; ``keras.layers.LSTM`` has two kernels."""

    def __init__(self, hidden: int):
        super().__init__()
        self.units, self.state_size = hidden, [hidden, hidden]

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1] + self.units, 4 * self.units))
        self.bias = self.add_weight(name="bias", shape=(4 * self.units,))

    def call(self, x: Any, before: Any) -> tuple[Any, list[Any]]:
        gates = ops.matmul(ops.concatenate([x, before[0]], axis=-1), self.kernel) + self.bias
        enter, forget, new, show = ops.split(gates, 4, axis=-1)
        c = ops.sigmoid(forget) * before[1] + ops.sigmoid(enter) * ops.tanh(new)
        h = ops.sigmoid(show) * ops.tanh(c)
        return h, [h, c]


class LanguageModel(keras.Model):  # type: ignore[misc]
    """``[n, t]`` words and the state before them -> logits ``[n, t, words]`` and the state after."""

    def __init__(self, like: models.LSTMLanguageModel):
        super().__init__()
        words, hidden = like.embedding.shape
        self.embedding = layers.Embedding(words, hidden)  # torch's order: the model's own come first
        self.head = layers.Dense(words)
        self.inner = [
            layers.RNN(Cell(hidden), return_sequences=True, return_state=True) for _ in range(len(like.layers))
        ]
        self.dropout = layers.Dropout(like.dropout)

    def call(self, tokens: Any, state: list[Any], training: bool = False) -> tuple[Any, list[Any]]:
        x, after = self.dropout(self.embedding(tokens), training=training), list[Any]()
        for layer, before in zip(self.inner, zip(state[::2], state[1::2], strict=True), strict=True):
            x, *last = layer(x, initial_state=list(before))
            x = self.dropout(x, training=training)
            after += last
        return self.head(x), after


class LSTM(Network):
    """See :class:`grace_bench.tasks.models.LSTMLanguageModel`. Its state is each layer's output and cell."""

    def __init__(self, like: models.LSTMLanguageModel):
        self.hidden, self.layers = like.hidden, len(like.layers)
        self.model = LanguageModel(like)
        self.model(tf.zeros((1, 1), tf.int64), self.begin(1))

    def begin(self, rows: int) -> list[Any]:
        return [tf.zeros((rows, self.hidden)) for _ in range(2 * self.layers)]

    def loss(self, arrays: Sequence[Any], state: list[Any]) -> tuple[Any, list[Any]]:
        tokens, following = arrays
        logits, after = self.model(tokens, state, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(following, logits)
        return tf.reduce_mean(tf.reduce_sum(losses, axis=1)), after  # the sum over the sequence, as the original has it
