"""A rank that trains a Keras ConvNet on the digits, once with each method: ``digits_with_keras.py SEED``."""

from __future__ import annotations

import os
import sys

if os.environ["KERAS_BACKEND"] != "tensorflow":  # Keras would import it where it sets seeds, which takes seconds
    sys.modules["tensorflow"] = None  # type: ignore[assignment]

import keras
from mpi4py import MPI

import grace.keras
from tests.adapters.toolkits.digits import BATCH, EPOCHS, METHODS, MOMENTUM, PEAK, STEPS, WARM, WORLD, load, tell


def train(method: str, seed: int) -> None:
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(32, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10),
    ])  # fmt: skip
    rate = keras.optimizers.schedules.CosineDecay(0.0, STEPS - WARM, warmup_target=PEAK, warmup_steps=WARM)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=MOMENTUM), loss, metrics=["accuracy"])
    handle = grace.keras.attach(model, method)
    data = load(handle.rank)
    callbacks = [grace.keras.BroadcastVariables(handle), grace.keras.AverageMetrics(handle)]
    model.fit(data.x, data.y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    _, accuracy = model.evaluate(data.test_x, data.test_y, batch_size=len(data.test_y), verbose=0)
    tell(method, accuracy, handle)
    handle.detach()


for name in METHODS:
    train(name, seed=WORLD * int(sys.argv[1]) + MPI.COMM_WORLD.rank)
