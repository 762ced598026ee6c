"""A callback that attaches Grace to the model that Lightning has wrapped."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from grace.adapters.trainers import AttachingCallback
from grace.errors import ConfigurationError

_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def _find_callback() -> Any:
    """Lightning's class: each of its two packages has one, unrelated to the other."""
    for name in sorted(_PACKAGES, key=lambda name: _PACKAGES[name] not in sys.modules):
        try:
            return importlib.import_module(_PACKAGES[name]).Callback
        except ModuleNotFoundError as error:
            if error.name not in (name, _PACKAGES[name]):
                raise
    raise ConfigurationError("grace.lightning needs Lightning: pip install 'grace-dl[lightning]'")


if TYPE_CHECKING:
    _Callback: Any = object
else:
    _Callback = _find_callback()


class Compression(AttachingCallback, _Callback):  # type: ignore[misc]
    """Makes Lightning exchange gradients with a compression method, on GPUs and on CPUs.

    ``Trainer(strategy="ddp")`` wraps the model; this attaches to it when ``fit`` begins. All ranks have the callback.

    - Checkpoints of the trainer hold the memories, and ``fit(ckpt_path=...)`` gives them back. As Lightning demands,
      call ``trainer.save_checkpoint`` on all ranks.
    - A second ``fit`` of the same module with the same callback goes on with the memories of the first.
    - The loggers and ``trainer.callback_metrics`` get ``grace/...`` every ``log_every_n_steps``, on rank 0: see
      :meth:`grace.Handle.log`.
    - Under ``precision="16-mixed"`` memories are in units without the loss's scale.

    Args:
        method, granularity, seed, nonfinite, check, check_replicas_every, on_difference, checksum, local_world_size,
            steps_per_epoch, transport: as for :func:`grace.attach`.
        memories: what a checkpoint holds: "mean", the mean of the workers' memories, which loads on any number of workers
            and under any method; or "all", each worker's state: the same number of workers goes on with the same bits.
        errors_every: steps from one measurement of compression errors to the next; 0 measures none.

    Raises:
        ConfigurationError: an unknown method, a knob out of range; in ``fit``, another strategy.

    Example::

        trainer = Trainer(strategy="ddp", devices=4, callbacks=[grace.lightning.Compression("topk:ratio=0.01")])
        trainer.fit(model, data)

    ``handle``: what :func:`grace.attach` returned, to switch the method or to read ``stats``; None before ``fit``.
    """

    _resumed: Any = None  # what the checkpoint held that fit begins with

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning calls it when the model is wrapped."""
        optimizers = trainer.optimizers
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        how = f"give the trainer strategy='ddp', it has {type(trainer.strategy).__name__}"
        resumed, self._resumed = self._resumed, None
        resumes = resumed is not None or bool(trainer.ckpt_path)
        optimizer = optimizers[0] if len(optimizers) == 1 else None
        self._attach(trainer.strategy.model, how, optimizer, scaler, resumes=resumes)
        if resumes:
            self._load(resumed)
        if trainer.is_global_zero:
            self._watch(trainer.log_every_n_steps)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Lightning calls it after each batch."""
        if self._found:
            values = self._take()
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)
            pl_module.log_dict(values, logger=False, rank_zero_only=True)  # into trainer.callback_metrics

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoint; all ranks call it."""
        return self._save()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From Lightning's checkpoint, before the model is wrapped."""
        self._resumed = state_dict
