"""Checks a model before its gradients are exchanged."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import keras

from grace.errors import ConfigurationError

logger = logging.getLogger(__name__)
HOOKED = {"apply": ["grads", "trainable_variables"], "_clip_gradients": ["grads"]}  # methods of an optimizer


def check_model(model: Any) -> None:
    """Refuses what cannot work, and says what to do about it.

    Raises:
        ConfigurationError: not a Keras model, not compiled, not built, several replicas, compiled by XLA on TensorFlow.
    """
    if not isinstance(model, keras.Model):
        raise ConfigurationError(f"attach takes a keras.Model, got {type(model).__name__}")
    if getattr(model, "optimizer", None) is None:
        raise ConfigurationError("the model is not compiled: model.compile(optimizer, loss) first, then attach")
    if not model.built or not all(layer.built for layer in model._flatten_layers()):
        raise ConfigurationError(
            "the model is not built, so that its variables have no shapes yet: call it once on a batch, model(x), or give it "
            "a keras.Input layer; then attach. model.build(shape) gives a subclassed model no weights"
        )
    if not model.trainable_variables:
        raise ConfigurationError("the model has no trainable variable: there is nothing to exchange")
    _check_replicas(model)
    _check_compilation(model)


def check_optimizer(optimizer: Any) -> None:
    """Refuses an optimizer that Grace cannot take gradients from.

    Raises:
        ConfigurationError: it lacks a method of Keras's optimizers, or one takes other arguments.
    """
    for name, legal in HOOKED.items():
        method = getattr(optimizer, name, None)
        given = list(inspect.signature(method).parameters) if callable(method) else None
        if given != legal:
            raise ConfigurationError(
                f"{type(optimizer).__name__}.{name} takes {given}, and Grace knows {legal}: it is not an optimizer of "
                f"Keras 3, or Keras {keras.__version__} has changed it. Grace was tested with Keras 3.15"
            )


def _check_replicas(model: Any) -> None:
    strategy = getattr(model, "distribute_strategy", None)  # TensorFlow's
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        raise ConfigurationError(
            f"tf.distribute has {strategy.num_replicas_in_sync} replicas in this process, and averages their gradients "
            "itself; start one process for each device, and use no strategy"
        )
    distribution = keras.distribution.distribution()
    if distribution is not None:
        raise ConfigurationError(
            f"keras.distribution is set to {type(distribution).__name__}, which averages gradients itself; start one process "
            "for each device, and call keras.distribution.set_distribution(None)"
        )


def _check_compilation(model: Any) -> None:
    """XLA cannot call the host on TensorFlow, and torch.compile would have to look into the exchange."""
    if keras.backend.backend() == "jax" or not model.jit_compile:
        return
    if not model._resolve_auto_jit_compile():  # so the user has asked for it
        raise ConfigurationError(
            f"jit_compile=True cannot call the exchange on {keras.backend.backend()}; model.compile(..., jit_compile=False)"
        )
    logger.warning("Grace has set model.jit_compile to False: a program of XLA cannot call the exchange")
    model.jit_compile = False
