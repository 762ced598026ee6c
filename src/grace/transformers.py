"""Hugging Face transformers: ``Trainer(..., callbacks=[grace.transformers.CompressionCallback("topk:ratio=0.01")])``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch

from grace.adapters.trainers import AttachingCallback
from grace.errors import ConfigurationError

try:
    import transformers as _transformers
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ConfigurationError("grace.transformers needs Hugging Face's: pip install 'grace-dl[transformers]'") from error

__all__ = ["FILE", "CompressionCallback"]

FILE = "grace.pt"  # in a folder checkpoint-N


class CompressionCallback(AttachingCallback, _transformers.TrainerCallback):  # type: ignore[misc]
    """Makes a ``Trainer`` exchange gradients with a compression method. All ranks have the callback.

    The trainer wraps the model in DistributedDataParallel when several processes run it, as under torchrun; this attaches to
    it when ``train`` begins, and detaches when it ends.

    - The folders ``checkpoint-N`` hold the memories (``grace.pt``), and ``train(resume_from_checkpoint=...)`` gives them back.
    - A second ``train`` of the same model with the same callback goes on with the memories of the first.
    - The trainer's logs get ``grace_ratio`` and others, per step, with each training loss: see :meth:`grace.Handle.log`.
    - Under ``fp16=True`` memories are in units without the loss's scale.

    Args:
        method, granularity, seed, nonfinite, check, check_replicas_every, on_difference, checksum, local_world_size,
            steps_per_epoch, transport: as for :func:`grace.attach`.
        memories: what a checkpoint holds: "mean", the mean of the workers' memories, which loads on any number of workers
            and under any method; or "all", each worker's state: the same number of workers goes on with the same bits.
        errors_every: steps from one measurement of compression errors to the next; 0 measures none.

    Raises:
        ConfigurationError: an unknown method, a knob out of range; in ``train``, a model that is wrapped otherwise.

    ``handle``: what :func:`grace.attach` returned, while ``train`` runs.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The trainer calls it when the model is wrapped, and the rest of a checkpoint is loaded."""
        trainer, folder = _find_trainer()
        how = "start it with torchrun, without FSDP and DeepSpeed"
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        scaler = getattr(trainer.accelerator, "scaler", None)
        self._attach(trainer.model_wrapped, how, optimizer, scaler, resumes=folder is not None)
        self._trainer = trainer
        if folder is not None:
            file = Path(folder) / FILE
            self._load(torch.load(file, map_location="cpu", weights_only=True) if file.exists() else None)
        self._watch(int(state.logging_steps or 1))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """After the trainer has logged a training loss, logs a line of our own, for all listeners."""
        if logs and "loss" in logs and self._found:
            self._trainer.log(self._take("_"))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The trainer has written ``checkpoint-N``. All ranks call it."""
        if self.handle is None or args.save_only_model:
            return
        saved = self._save()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if args.should_save and folder.is_dir():  # a trial of a hyperparameter search has no folder there
            torch.save(saved, folder / FILE)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The model goes on alone."""
        self._detach()


def _find_trainer() -> tuple[Any, str | None]:
    """The trainer that calls us, and the checkpoint that it resumes. It tells callbacks neither of them."""
    frame = inspect.currentframe()
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, _transformers.Trainer) and "resume_from_checkpoint" in frame.f_locals:
            return trainer, frame.f_locals["resume_from_checkpoint"]
        frame = frame.f_back
    raise ConfigurationError("CompressionCallback: a transformers.Trainer calls it, in train()")
