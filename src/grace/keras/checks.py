"""Checks a model before its gradients are exchanged."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import keras

from grace.errors import ConfigurationError

logger = logging.getLogger(__name__)
HOOKED = {"apply": ["grads", "trainable_variables"], "_clip_gradients": ["grads"]}  # methods of an optimizer


def check_model(model: Any, optimizer: Any = None) -> Any:
    """Refuses what cannot work, and says what to do about it.

    Args:
        model: of Keras.
        optimizer: the one that was named; None: the model has one alone.

    Returns:
        The optimizer whose gradients are to be exchanged.

    Raises:
        ConfigurationError: not a Keras model, not compiled, not built, several replicas, compiled by XLA on TensorFlow;
            several optimizers of which none is named, or one that is not built, or trains another model.
    """
    if not isinstance(model, keras.Model):
        raise ConfigurationError(f"attach takes a keras.Model, got {type(model).__name__}")
    if optimizer is None:
        optimizer = _find_optimizer(model)
        _check_built(model)
    else:
        _check_named(model, optimizer)
    if not model.trainable_variables:
        raise ConfigurationError("the model has no trainable variable: there is nothing to exchange")
    _check_replicas(model)
    _check_compilation(model)
    return optimizer


def find_optimizers(model: Any, *, inside: bool = False) -> dict[str, Any]:
    """The optimizers that are attributes of a model, or in a list or dictionary there, by the names where they are optimizers.

    Args:
        model: of Keras.
        inside: whether to look into the models within, too.
    """
    optimizers: dict[str, Any] = {}
    for owner in model._flatten_layers() if inside else [model]:
        for name, held in vars(owner).items():
            pairs: list[tuple[str, Any]] = [(name, held)]
            if name.startswith("_"):  # the toolkit's own lists of what is there
                continue
            if isinstance(held, list | tuple):
                pairs = [(f"{name}[{place}]", value) for place, value in enumerate(held)]
            elif isinstance(held, dict):
                pairs = [(f"{name}[{key!r}]", value) for key, value in held.items()]
            for own, value in pairs:
                if isinstance(value, keras.optimizers.Optimizer) and _inner(value) not in map(
                    _inner, optimizers.values()
                ):
                    optimizers[own if owner is model else f"{owner.name}.{own}"] = value
    return optimizers


def _inner(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _find_optimizer(model: Any) -> Any:
    if getattr(model, "optimizer", None) is None:
        raise ConfigurationError("the model is not compiled: model.compile(optimizer, loss) first, then attach")
    names = list(find_optimizers(model))
    if len(names) > 1:
        raise ConfigurationError(
            f"this model has the optimizers {', '.join(map(repr, names))}, and which of them train is not known. Attach to "
            f"each that does, once it is built: grace.keras.attach(model, method, optimizer=model.{names[-1]})"
        )
    return model.optimizer


def _check_named(model: Any, optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            f"attach: optimizer={optimizer!r:.60}; legal: a keras.optimizers.Optimizer, such as model.d_optimizer"
        )
    if not optimizer.built:
        raise ConfigurationError(
            f"optimizer= is a {type(optimizer).__name__} that does not know yet what it trains; build it first: "
            "optimizer.build(variables), such as model.discriminator.trainable_variables"
        )
    known = {id(v) for v in model.variables}
    foreign = [v.path for v in _inner(optimizer)._trainable_variables if id(v) not in known]
    if foreign:
        raise ConfigurationError(
            f"optimizer= trains {', '.join(map(repr, foreign[:5]))}, which is no variable of this model; give the model that "
            "has all that it trains"
        )


def _check_built(model: Any) -> None:
    if not model.built or not all(layer.built for layer in model._flatten_layers()):
        raise ConfigurationError(
            "the model is not built, so that its variables have no shapes yet: call it once on a batch, model(x), or give it "
            "a keras.Input layer; then attach. model.build(shape) gives a subclassed model no weights"
        )


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
