"""Keras's cases, on the backend that KERAS_BACKEND names; see ``running.py``. Each runs on two ranks, with files in FOLDER."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if os.environ["KERAS_BACKEND"] != "tensorflow":  # Keras would import it where it saves a model, which takes seconds
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
if os.environ["KERAS_BACKEND"] != "jax":
    sys.modules["jax"] = None  # type: ignore[assignment]

import keras
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import grace
import grace.keras
from grace.errors import ConfigurationError, FingerprintMismatch, GraceError, InputError, StateError
from tests.adapters.toolkits.running import raises, serve
from tests.adapters.toolkits.same_bits import METHODS, SHAPES, compare, policy
from tests.patience import PATIENCE

BACKEND, FOLDER = keras.backend.backend(), Path(os.environ["FOLDER"])


# ---- tools ----------------------------------------------------------------------------------------------------------
def numbers(variables: Sequence[Any]) -> list[Any]:
    return [np.asarray(keras.ops.convert_to_numpy(v.value)) for v in variables]


def check_alike(what: Any) -> None:
    """The same on both ranks."""
    texts: list[Any] = [None, None]
    dist.all_gather_object(texts, what if isinstance(what, str) else [zlib.crc32(x.tobytes()) for x in what])
    assert texts[0] == texts[1], texts


def build(*layers: Any, optimizer: Any, inputs: int = 32, **options: Any) -> Any:
    model = keras.Sequential([keras.layers.Input((inputs,)), *layers])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


def batches(rank: int, count: int, inputs: int = 32) -> tuple[Any, Any]:
    made = np.random.RandomState(rank)
    x = made.randn(16 * count, inputs).astype("f")
    return x, (x @ np.random.RandomState(9).randn(inputs, 4)).argmax(1)


def start_apart(model: Any, rank: int) -> None:
    """Other numbers on each rank. (keras.utils.set_random_seed would import TensorFlow on every backend.)"""
    made = np.random.RandomState(rank)
    for v in model.trainable_variables:
        v.assign(0.1 * made.randn(*v.shape).astype("f"))


def apply(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    given = [None if g is None else keras.ops.convert_to_tensor(g) for g in grads]
    with torch.no_grad():
        optimizer.apply(given, list(variables))


def plain_model(*kinds: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]] | None = None, **options: Any) -> Any:
    """A model whose only use is its variables, which are 0, so that a step of SGD(1.0) shows the mean. They are called
    "bare/w0" and so on, or as in ``shapes``.
    """
    shapes = shapes or {f"bare/w{i}": kind for i, kind in enumerate(kinds)}

    class Bare(keras.layers.Layer):
        def build(self, _: Any) -> None:
            for name, shape in shapes.items():
                layer, _, own = name.partition("/")
                if layer == self.name:
                    setattr(self, own, self.add_weight(shape=shape, initializer="zeros", name=own))

        def call(self, x: Any) -> Any:
            return x

    layers = [Bare(name=name) for name in dict.fromkeys(name.partition("/")[0] for name in shapes)]
    model = keras.Sequential([keras.layers.Input((1,)), *layers])
    model.compile(keras.optimizers.SGD(1.0, **options), "mse")
    return model


class PoisonOnce(keras.layers.Layer):
    """Activations overflow in one step."""

    def __init__(self, when: int):
        super().__init__()
        self.when = when

    def build(self, _: Any) -> None:
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="float32", autocast=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        self.count.assign(self.count + 1.0)
        bad = keras.ops.where(keras.ops.equal(self.count, float(self.when)), float("inf"), 1.0)
        return x * keras.ops.cast(bad, x.dtype)


# ---- cases ----------------------------------------------------------------------------------------------------------
def refusals(rank: int, world: int) -> None:
    with raises(ConfigurationError, "keras.Model"):
        grace.keras.attach(torch.nn.Linear(2, 2), "none")
    model = keras.Sequential([keras.layers.Dense(4)])
    with raises(ConfigurationError, "not compiled", "compile("):
        grace.keras.attach(model, "none")
    model.compile("sgd", "mse")
    with raises(ConfigurationError, "not built", "keras.Input", "build("):
        grace.keras.attach(model, "none")
    model = plain_model((2, 2))
    if BACKEND != "jax":
        model.jit_compile = True
        with raises(ConfigurationError, "jit_compile=False"):
            grace.keras.attach(model, "none")
        model._resolve_auto_jit_compile = lambda: True  # as where TensorFlow sees a GPU
        grace.keras.attach(model, "none").detach()
        assert model.jit_compile is False
    model.optimizer.__dict__["_clip_gradients"] = lambda grads, variables: grads
    with raises(ConfigurationError, "_clip_gradients", "Keras"):
        grace.keras.attach(model, "none")
    del model.optimizer.__dict__["_clip_gradients"]
    refuse_distributions(model)
    handle = grace.keras.attach(model, "none")
    with raises(ConfigurationError, "attached", "switch"):
        grace.keras.attach(model, "none")
    with raises(ConfigurationError, "detach"):
        model.compile("adam", "mse")
    with raises(ConfigurationError, "{rank}"):
        grace.keras.SaveState(handle, FOLDER / "state.pt")
    with raises(ConfigurationError, ".npz"):
        grace.keras.SaveState(handle, FOLDER / "state-{rank}.h5")
    with raises(ConfigurationError, "every=0"):
        grace.keras.SaveState(handle, FOLDER / "state-{rank}.pt", every=0)
    with raises(StateError, "cannot" if rank else ""):
        handle.load(FOLDER / "absent-{rank}.npz")
    with raises(InputError, "different metrics"):
        handle.average({f"of {rank}": 1.0})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        grace.keras.attach(plain_model((2, 2), momentum=0.9), policy("dgc")).detach()
    assert any(issubclass(warning.category, grace.OptimizerWarning) for warning in caught) == (rank == 0), caught
    callback = grace.keras.AverageMetrics(handle)
    handle.detach()
    handle.detach()
    with raises(ConfigurationError, "not attached"):
        model.fit(np.zeros((2, 1), "f"), np.zeros((2, 1), "f"), verbose=0, callbacks=[callback])
    with raises(GraceError, "detached"):
        handle.switch("topk")
    model.compile("adam", "mse")


def refuse_distributions(model: Any) -> None:
    """Keras's own, which average gradients themselves, in this process or in several."""
    distribution = keras.distribution
    devices = ["cpu:0"]
    mesh = distribution.DeviceMesh((1, 1), ["batch", "model"], devices)
    layout = distribution.LayoutMap(mesh)
    for refused in (
        distribution.DataParallel(devices=devices),
        distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"),
    ):
        distribution.set_distribution(refused)
        try:
            with raises(ConfigurationError, type(refused).__name__, "keras.distribution.set_distribution(None)"):
                grace.keras.attach(model, "none")
        finally:
            distribution.set_distribution(None)


def mismatch(rank: int, world: int) -> None:
    with raises(FingerprintMismatch, "topk", "qsgd"):
        grace.keras.attach(plain_model((2, 2)), "topk:ratio=0.5" if rank else "qsgd:bits=4")
    with raises(FingerprintMismatch, "gradient_accumulation_steps"):
        grace.keras.attach(plain_model((2, 2), gradient_accumulation_steps=4 if rank else 2), "none")


def means_are_the_simulators(rank: int, world: int) -> None:
    model = plain_model(shapes=SHAPES)
    variables = model.trainable_variables
    for method in METHODS:
        handle = grace.keras.attach(model, policy(method))

        def mean(given: Sequence[Tensor]) -> list[Tensor]:
            for v in variables:
                v.assign(np.zeros(tuple(v.shape), "f"))
            apply(model.optimizer, [x.numpy() for x in given], variables)
            return [torch.from_numpy(-x) for x in numbers(variables)]

        compare(method, rank, mean, steps=3)
        assert handle.stats.steps == 3
        handle.detach()


def clipping_sees_the_mean(rank: int, world: int) -> None:
    own = np.array([[6.0, 8.0], [-6.0, -7.5]][rank], "f")
    for option, expected in (("clipnorm", 0.25), ("global_clipnorm", 0.25), ("clipvalue", 0.25)):
        model = plain_model((2,), **{option: 1.0})
        handle = grace.keras.attach(model, "none")
        apply(model.optimizer, [own], model.trainable_variables)
        assert numbers(model.trainable_variables)[0].tolist() == [0.0, -expected]
        handle.detach()


def gradients_that_are_absent(rank: int, world: int) -> None:
    model = plain_model((2,), (2,), (2,))
    handle = grace.keras.attach(model, "none", nonfinite="error")
    ones = np.ones(2, "f")
    for step in range(2):
        apply(model.optimizer, [ones, None if rank else ones, None], model.trainable_variables)
        means = [x.tolist() for x in numbers(model.trainable_variables)]
        assert means == [[-1.0 - step] * 2, [-0.5 - step / 2] * 2, [0.0, 0.0]], means
    constant = keras.ops.convert_to_tensor(ones)
    for _ in range(2):  # what is lent is never written
        with torch.no_grad():
            model.optimizer.apply([constant, constant, None], model.trainable_variables)
    assert keras.ops.convert_to_numpy(constant).tolist() == [1.0, 1.0]
    model.optimizer.apply([keras.ops.convert_to_tensor(ones)] * 2, model.trainable_variables[:2])
    with raises(InputError, "w2"):
        apply(model.optimizer, [ones] * 3, model.trainable_variables)
    assert isinstance(handle.error, InputError)


def training(rank: int, world: int) -> None:
    """Everything at once that goes together: BatchNorm, a schedule, callbacks, a step before attach, two fits, a switch."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)
    norm = keras.layers.BatchNormalization()
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9)
    model = build(keras.layers.Dense(64), norm, keras.layers.Dense(4), optimizer=optimizer, metrics=["accuracy"])
    start_apart(model, rank)
    x, y = batches(rank, 4)
    model.train_on_batch(x, y)  # traced without Grace; averages and momenta differ from here on
    handle = grace.keras.attach(model, "topk:ratio=0.05,follow_lr=true")
    check_alike(numbers([*model.variables, *optimizer.variables]))
    callbacks = [
        grace.keras.BroadcastVariables(handle), grace.keras.AverageMetrics(handle), grace.keras.LogTraffic(handle),
        grace.keras.SaveState(handle, FOLDER / "memories-{rank}-{epoch}.pt", every=2),
    ]  # fmt: skip
    if BACKEND == "tensorflow":
        callbacks.append(keras.callbacks.TensorBoard(FOLDER / f"board-{rank}"))
    if rank == 1:
        norm.moving_mean.assign(norm.moving_mean + 1.0)  # Broadcast brings it back
    options = {"batch_size": 16, "shuffle": False, "verbose": 0, "validation_data": (x[:16], y[:16])}
    history = model.fit(x, y, epochs=2, callbacks=callbacks, **options).history
    check_alike(numbers(model.trainable_variables))
    assert handle.stats.steps == 8
    # the learning rate of the last step: one was made before attach
    assert abs((handle.lr or 0.0) - 0.1 * 0.5 ** (8 / 4)) < 1e-6, handle.lr
    assert {"loss", "accuracy", "val_loss", "grace_ratio", "grace_sent_bytes"} <= history.keys()
    check_alike(repr({name: values for name, values in history.items() if not name.startswith("grace")}))
    assert sum(history["grace_sent_bytes"]) == handle.stats.traffic.sent
    assert abs(history["grace_ratio"][0] - handle.stats.ratio) < 1e-6
    assert not (FOLDER / f"memories-{rank}-1.pt").exists()
    saved = torch.load(FOLDER / f"memories-{rank}-2.pt", weights_only=True)
    assert saved["step"] == 8
    if BACKEND == "tensorflow":
        text = b"".join(file.read_bytes() for file in (FOLDER / f"board-{rank}").rglob("events*"))
        assert b"epoch_grace_ratio" in text
    handle.switch("none")
    model.fit(x, y, epochs=1, **options)
    check_alike(numbers(model.trainable_variables))
    assert handle.stats.steps == 12
    handle.detach()
    model.fit(x, y, epochs=1, **options)
    assert handle.stats.steps == 12


def auto(rank: int, world: int) -> None:
    """It chooses, its state goes through a file, and what loads it goes on."""
    model = build(keras.layers.Dense(64), keras.layers.Dense(4), optimizer=keras.optimizers.SGD(0.1))
    x, y = batches(rank, 10)
    handle = grace.keras.attach(model, "auto:methods=(qsgd:bits=4)")
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    assert "a step takes" in str(handle.explain())
    check_alike(numbers(model.trainable_variables))
    handle.save(FOLDER / "auto-{rank}.npz")
    handle.detach()
    handle = grace.keras.attach(model, "auto:methods=(qsgd:bits=4)")
    handle.load(FOLDER / "auto-{rank}.npz")
    assert handle.stats.steps == 0
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    check_alike(numbers(model.trainable_variables))
    handle.detach()


def loss_scaling(rank: int, world: int) -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        layers = [keras.layers.Dense(64), PoisonOnce(2 if rank else -1), keras.layers.Dense(4, dtype="float32")]
        model = build(*layers, optimizer=keras.optimizers.SGD(0.1))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    handle = grace.keras.attach(model, "topk:ratio=0.05")
    x, y = batches(rank, 1)
    before, states = [], []
    for _ in range(3):
        before.append(numbers(model.trainable_variables))
        model.train_on_batch(x, y)
        states.append(grace.state.flat(handle.state_dict()))
    assert all(np.array_equal(a, b) for a, b in zip(before[1], before[2], strict=True)), "the step was not skipped"
    assert all(np.array_equal(states[0][name], x) for name, x in states[1].items()), "memories have changed"
    assert any(not np.array_equal(states[1][name], x) for name, x in states[2].items())
    assert handle.stats.steps == 2
    assert float(numbers([model.optimizer.dynamic_scale])[0]) == 2.0**14
    check_alike(numbers(model.trainable_variables))
    handle.detach()


def accumulation(rank: int, world: int) -> None:
    """Each update has one exchange; with an average of weights, and a train_step of the user's."""

    class Mine(keras.Model):
        steps = 0

        def train_step(self, *given: Any) -> Any:
            self.steps += 1  # when it is traced
            return super().train_step(*given)

    inputs = keras.Input((32,))
    model = Mine(inputs, keras.layers.Dense(4)(keras.layers.Dense(64)(inputs)))
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4, use_ema=True)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    start_apart(model, rank)
    handle = grace.keras.attach(model, "topk:ratio=0.05")
    start = numbers(model.trainable_variables)
    x, y = batches(rank, 8)
    model.fit(x[:-8], y[:-8], epochs=1, batch_size=16, verbose=0)  # the last batch is smaller, and traced anew
    assert model.steps >= 1
    assert handle.stats.steps == 2
    check_alike(numbers(model.trainable_variables))
    assert not np.array_equal(start[0], numbers(model.trainable_variables)[0])
    handle.detach()


def embedding(rank: int, world: int) -> None:
    """Gradients that are sparse on TensorFlow, and several steps in one execution."""
    layers = [keras.layers.Embedding(40, 32), keras.layers.Flatten(), keras.layers.Dense(4)]
    several = {} if BACKEND == "torch" else {"steps_per_execution": 4}  # Keras has it not on torch
    model = build(*layers, optimizer=keras.optimizers.SGD(0.1), inputs=3, **several)
    start_apart(model, rank)
    handle = grace.keras.attach(model, "topk:ratio=0.05")
    made = np.random.RandomState(rank)
    model.fit(made.randint(0, 40, (128, 3)), made.randint(0, 4, 128), epochs=1, batch_size=16, verbose=0)
    assert handle.stats.steps == 8
    check_alike(numbers(model.trainable_variables))
    handle.detach()


def restart(rank: int, world: int) -> None:
    """Five steps, a file, five more: the bits of ten. The file of the model knows nothing of Grace."""
    x, y = batches(rank, 1)

    def begin() -> tuple[Any, grace.keras.KerasHandle]:
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        layers = [
            keras.layers.Dense(64, name="a"),
            keras.layers.Dropout(0.2, seed=rank + 1),
            keras.layers.Dense(4, name="b"),
        ]
        model = build(*layers, optimizer=optimizer)
        start_apart(model, 0)
        return model, grace.keras.attach(model, "topk:ratio=0.05")

    model, handle = begin()
    for step in range(10):
        if step == 5:
            if rank == 0:
                model.save(FOLDER / "model.keras")
            handle.save(FOLDER / "memories-{rank}.npz")
        model.train_on_batch(x, y)
    expected, states = numbers(model.trainable_variables), grace.state.flat(handle.state_dict())
    handle.detach()
    dist.barrier()
    with zipfile.ZipFile(FOLDER / "model.keras") as file:
        assert not any(b"grace" in file.read(name) for name in file.namelist())
    model = keras.models.load_model(FOLDER / "model.keras")
    assert type(model.optimizer).__module__.startswith("keras")
    assert "_clip_gradients" not in vars(model.optimizer)
    handle = grace.keras.attach(model, "topk:ratio=0.05")
    handle.load(FOLDER / "memories-{rank}.npz")
    for _ in range(5):
        model.train_on_batch(x, y)
    for a, b in zip(expected, numbers(model.trainable_variables), strict=True):
        assert np.array_equal(a, b)
    assert all(np.array_equal(states[name], x) for name, x in grace.state.flat(handle.state_dict()).items())
    damaged = FOLDER / f"memories-{rank}.npz"
    if rank == 1:
        damaged.write_bytes(damaged.read_bytes()[:100])
    with raises(StateError, "cannot read" if rank else "rank 1"):
        handle.load(FOLDER / "memories-{rank}.npz")
    handle.detach()


class Two(keras.Model):
    """A generator and a discriminator, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(32)])
        self.discriminator = keras.Sequential(
            [keras.layers.Input((32,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
        )

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()  # Keras makes an optimizer, which nobody applies
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.built = True  # Keras's fit asks for it

    def losses_of(self, real: Any) -> tuple[Any, Any]:
        fake = self.generator(real[:, :8])
        apart = self.discriminator(fake) - self.discriminator(real)
        return keras.ops.mean(keras.ops.softplus(apart)), keras.ops.mean(keras.ops.softplus(-apart))

    def train_step(self, real: Any) -> dict[str, Any]:
        real = real[0] if isinstance(real, tuple) else real
        for place, (part, optimizer) in enumerate(
            [(self.discriminator, self.d_optimizer), (self.generator, self.g_optimizer)]
        ):
            variables = part.trainable_variables
            if BACKEND == "torch":
                self.zero_grad()
                loss = self.losses_of(real)[place]
                loss.backward()
                with torch.no_grad():
                    optimizer.apply([v.value.grad for v in variables], variables)
            else:
                import tensorflow as tf

                with tf.GradientTape() as tape:
                    loss = self.losses_of(real)[place]
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def two_optimizers(rank: int, world: int) -> None:
    """Both can be attached; one that is not is named; none is taken for the other."""
    if BACKEND == "jax":
        return  # there a train_step threads states through by hand
    x = batches(rank, 6)[0]

    def make() -> Any:
        model = Two()
        model.compile(keras.optimizers.SGD(0.05), keras.optimizers.Adam(0.01))
        return model

    def fit(model: Any) -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", grace.UnexchangedWarning)
            model.fit(x, batch_size=16, shuffle=False, verbose=0)
        return [str(warning.message) for warning in caught if issubclass(warning.category, grace.UnexchangedWarning)]

    model = make()
    with raises(ConfigurationError, "'optimizer', 'd_optimizer', 'g_optimizer'", "optimizer=model.g_optimizer"):
        grace.keras.attach(model, "topk:ratio=0.05")
    with raises(ConfigurationError, "build it first"):
        grace.keras.attach(model, "topk:ratio=0.05", optimizer=model.d_optimizer)
    model.d_optimizer.build(model.discriminator.trainable_variables)
    model.g_optimizer.build(model.generator.trainable_variables)
    with raises(ConfigurationError, "no variable of this model"):
        grace.keras.attach(make(), "topk:ratio=0.05", optimizer=model.d_optimizer)
    with raises(ConfigurationError, "legal: a keras.optimizers.Optimizer"):
        grace.keras.attach(model, "topk:ratio=0.05", optimizer="sgd")
    d = grace.keras.attach(model, "topk:ratio=0.05", optimizer=model.d_optimizer)
    with raises(ConfigurationError, "attached to this optimizer already"):
        grace.keras.attach(model, "topk:ratio=0.05", optimizer=model.d_optimizer)
    (message,) = fit(model)
    assert "'g_optimizer' changes" in message, message
    assert "optimizer=model.g_optimizer" in message, message
    g = grace.keras.attach(model, "topk:ratio=0.05", optimizer=model.g_optimizer)  # all have rank 0's again
    before = numbers(model.trainable_variables)
    assert fit(model) == []
    check_alike(numbers(model.trainable_variables))
    for part in (model.generator, model.discriminator):
        place = next(i for i, v in enumerate(model.trainable_variables) if v is part.trainable_variables[0])
        assert not np.array_equal(before[place], numbers(model.trainable_variables)[place])
    assert d.stats.steps == 12
    assert g.stats.steps == 6
    for handle in (d, g):
        with raises(ConfigurationError, "detach"):
            model.compile(keras.optimizers.SGD(0.05), keras.optimizers.Adam(0.01))
        handle.detach()
    assert fit(model) == []
    model.compile(keras.optimizers.SGD(0.05), keras.optimizers.Adam(0.01))


def killed(rank: int, world: int) -> None:
    """Last: one worker is killed, and the other one ends with an error that says so."""
    model = build(keras.layers.Dense(64), keras.layers.Dense(4), optimizer=keras.optimizers.SGD(0.1))
    handle = grace.keras.attach(model, "topk:ratio=0.05")
    x, y = batches(rank, 1)
    model.train_on_batch(x, y)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with raises(Exception, "A worker has died"):  # TensorFlow and JAX have an error of their own around it
        model.train_on_batch(x, y)
    assert time.monotonic() - start < PATIENCE / 2
    assert isinstance(handle.error, grace.errors.TransportError)


if __name__ == "__main__":
    cases = (
        refusals, mismatch, means_are_the_simulators, clipping_sees_the_mean, gradients_that_are_absent, training, auto,
        loss_scaling, accumulation, embedding, restart, two_optimizers, killed,
    )  # fmt: skip
    serve({case.__name__: case for case in cases})
