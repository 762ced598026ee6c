"""Keras 3, on any of its backends: ``grace.keras.attach(model, "topk:ratio=0.01")`` after ``compile``, then ``fit``.

The optimizer's class, its configuration and saved files stay Keras's own: a saved model loads where Grace is not installed.
"""

from __future__ import annotations

from grace.errors import ConfigurationError

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "keras":
        raise
    raise ConfigurationError(
        "grace.keras needs Keras 3: pip install 'grace-dl[keras]', and one of its backends"
    ) from error

from grace.keras.attach import attach
from grace.keras.callbacks import AverageMetrics, BroadcastVariables, LogTraffic, SaveState
from grace.keras.handle import KerasHandle

__all__ = ["AverageMetrics", "BroadcastVariables", "KerasHandle", "LogTraffic", "SaveState", "attach"]
