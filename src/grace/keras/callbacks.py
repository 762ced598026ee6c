"""Callbacks for ``model.fit``. They are collective: all ranks give the same ones, in the same order."""

from __future__ import annotations

import pathlib
from typing import Any

import keras

from grace.collectives import ring_bytes
from grace.errors import ConfigurationError, out_of_range
from grace.keras.files import name_file, write_state
from grace.keras.handle import KerasHandle
from grace.keras.host import wait_for_host


class _Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback for one handle, and the model that it is attached to."""

    def __init__(self, handle: KerasHandle):
        super().__init__()
        if not isinstance(handle, KerasHandle):
            raise ConfigurationError(
                f"{type(self).__name__} takes what grace.keras.attach returned, got {type(handle).__name__}"
            )
        self.handle = handle

    def on_train_begin(self, logs: Any = None) -> None:
        self.handle.check_model(self.model)


class BroadcastVariables(_Callback):
    """Copies rank 0's variables to all ranks when training begins. :func:`grace.keras.attach` has done so already: this is
    for variables that have changed since, such as weights that rank 0 alone has loaded.

    Args:
        handle: what :func:`grace.keras.attach` returned.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self.handle.broadcast_from_rank0()


class AverageMetrics(_Callback):
    """Puts the mean over all workers in the place of each number in an epoch's logs, those of validation included.

    Callbacks that come later in the list see the means, and so does ``History``: put it before ``EarlyStopping``,
    ``ReduceLROnPlateau`` and ``TensorBoard``, so that all ranks decide alike. Every worker has the same weight.

    Args:
        handle: what :func:`grace.keras.attach` returned.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs:
            numbers = {name: float(x) for name, x in logs.items() if _is_number(x)}
            logs.update(self.handle.average(numbers))


class LogTraffic(_Callback):
    """Adds to an epoch's logs what the exchange has cost during it: ``grace_sent_bytes``, bytes that this worker has sent;
    ``grace_ratio``, how many times fewer than a ring all-reduce of the gradients. ``History`` has them, and ``TensorBoard``,
    where that comes later in the list.

    Args:
        handle: what :func:`grace.keras.attach` returned.
    """

    def __init__(self, handle: KerasHandle):
        super().__init__(handle)
        self._sent, self._dense = handle.stats.traffic.sent, handle.stats.dense_bytes

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        wait_for_host()
        stats = self.handle.stats
        sent, dense = stats.traffic.sent - self._sent, stats.dense_bytes - self._dense
        self._sent, self._dense = stats.traffic.sent, stats.dense_bytes
        if logs is not None:
            ring = ring_bytes(dense, stats.world)
            logs.update(grace_sent_bytes=float(sent), grace_ratio=ring / sent if sent else 1.0)


class SaveState(_Callback):
    """Saves the state of the exchange at the end of an epoch. The model you save yourself, as with
    ``keras.callbacks.ModelCheckpoint``. After a restart: ``load_model`` and :func:`grace.keras.attach`, then
    ``handle.load(path)``.

    Args:
        handle: what :func:`grace.keras.attach` returned.
        path: ends in ``.npz`` or ``.pt``; ``{rank}`` and ``{epoch}`` in it are filled in. Epochs count from 1, as in the names
            of ``ModelCheckpoint``.
        every: epochs from one file to the next.

    Raises:
        ConfigurationError: another ending, or one file for several ranks.
    """

    def __init__(self, handle: KerasHandle, path: str | pathlib.Path, *, every: int = 1):
        super().__init__(handle)
        if type(every) is not int or every < 1:
            raise out_of_range("Checkpoint", "every", every, "a whole number >= 1")
        name_file(path, handle.rank, handle.world, epoch=1)
        self._path, self._every = path, every

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (epoch + 1) % self._every == 0:
            write_state(self._path, self.handle.state_dict(), self.handle.rank, self.handle.world, epoch=epoch + 1)


def _is_number(x: Any) -> bool:
    try:
        float(x)
    except (TypeError, ValueError):
        return False
    return True
