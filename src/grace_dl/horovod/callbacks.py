"""The names of ``horovod.tensorflow.keras.callbacks``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import torch

from grace.tensorflow import broadcast_variables
from grace_dl.communicator import Lasting
from grace_dl.horovod import common

__all__ = [
    "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback", "LearningRateWarmupCallback", "MetricAverageCallback",
]  # fmt: skip
_Callback: Any = tf.keras.callbacks.Callback


class BroadcastGlobalVariablesCallback(_Callback):  # type: ignore[misc]
    """After the first batch all ranks get the root's variables, those of the optimizer too.

    Args:
        root_rank: the rank whose variables all get.
        device: Horovod's; Grace has no use for it.
    """

    def __init__(self, root_rank: int = 0, device: str = ""):
        super().__init__()
        self._root, self._done = root_rank, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See Keras."""
        if self._done:
            return
        variables = self.model.optimizer.variables
        every = [*self.model.variables, *(variables() if callable(variables) else variables)]
        unique = list({id(v): v for v in every if tf.as_dtype(v.dtype).size}.values())
        broadcast_variables(unique, self._root, transport=Lasting(common.transport()))
        self._done = True


class MetricAverageCallback(_Callback):  # type: ignore[misc]
    """At the end of an epoch metrics become means over the workers."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See Keras."""
        names = sorted(name for name, value in (logs or {}).items() if isinstance(value, int | float))
        if names:
            means = common.allreduce(
                torch.tensor([float(logs[name]) for name in names], dtype=torch.float64, device="cpu")
            )
            logs.update(zip(names, means.tolist(), strict=True))


class LearningRateScheduleCallback(_Callback):  # type: ignore[misc]
    """The learning rate by epoch.

    Args:
        initial_lr: the rate that is multiplied.
        multiplier: a number, or a function of the epoch.
        start_epoch, end_epoch: the epochs between which it holds.
    """

    def __init__(
        self, initial_lr: float | None = None, multiplier: float | Callable[[int], float] = 1.0, start_epoch: int = 0,
        end_epoch: int | None = None, *args: Any, **knobs: Any,
    ):  # fmt: skip
        super().__init__()
        self._initial, self._multiplier = initial_lr, multiplier
        self._start, self._end = start_epoch, end_epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See Keras."""
        rate = self.model.optimizer.learning_rate
        if self._initial is None:
            self._initial = float(rate.numpy() if hasattr(rate, "numpy") else rate)
        if epoch < self._start or (self._end is not None and epoch >= self._end):
            return
        share = self._multiplier(epoch) if callable(self._multiplier) else self._multiplier
        self.model.optimizer.learning_rate = self._initial * share


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from that of one worker to that of all, over some epochs; Goyal et al., arXiv 1706.02677.

    Args:
        initial_lr: that of all workers; by default the optimizer's.
        warmup_epochs: how many.
        momentum_correction, steps_per_epoch, verbose: Horovod's; Grace has no use for them.
    """

    def __init__(
        self, initial_lr: float | None = None, warmup_epochs: int = 5, momentum_correction: bool = True,
        steps_per_epoch: int | None = None, verbose: int = 0,
    ):  # fmt: skip
        def share(epoch: int) -> float:
            done, world = min(1.0, (epoch + 1) / max(1, warmup_epochs)), common.size()
            return (1 + done * (world - 1)) / world

        super().__init__(initial_lr, share, end_epoch=max(1, warmup_epochs))
