"""Runs that have ended, for TensorBoard and for Weights & Biases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from grace_bench.extras import need
from grace_bench.runs.results import Result
from grace_bench.runs.table import line

_SUMMARY = (
    "final", "best", "step_ms", "compute_ms", "exposed_ms", "codec_ms", "samples_per_second", "sent_bytes_per_step",
    "target_seconds",
)  # fmt: skip


class Tracker(Protocol):
    """A receiver of the results of each run."""

    def log(self, name: str, document: Result) -> None:
        """A run with a result; ``name`` is its file's, without the ending."""


def summary(document: Result) -> dict[str, float]:
    """The numbers of a run that are not part of its curve, as far as it has them."""
    row = line(document)
    return {key: float(value) for key in _SUMMARY if (value := row[key]) is not None}


def _points(document: Result) -> list[tuple[int, dict[str, float]]]:
    """Step and metrics of each evaluation."""
    points = [(point.step, {"train_loss": point.train_loss, **point.metrics}) for point in document.curve]
    return [(step, {key: value for key, value in values.items() if value is not None}) for step, values in points]


class TensorBoard:
    """A folder for each run under ``folder``.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: Path):
        need("tensorboard", extra="tensorboard")
        self.folder = folder

    def log(self, name: str, document: Result) -> None:
        """See :class:`Tracker`."""
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.folder / name)) as writer:
            for step, metrics in _points(document):
                for key, value in metrics.items():
                    writer.add_scalar(key, value, step)
            for key, value in summary(document).items():
                writer.add_scalar(f"summary/{key}", value, document.steps)


class Wandb:
    """A run in ``project`` for each run here; WANDB_MODE=offline keeps them in ``folder``.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, project: str, folder: Path):
        self.wandb, self.project, self.folder = need("wandb", extra="wandb"), project, folder

    def log(self, name: str, document: Result) -> None:
        """See :class:`Tracker`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        row = line(document)
        config = {key: row[key] for key in ("task", "method", "workers", "seed", "granularity", "link", "family")}
        run = self.wandb.init(
            project=self.project, name=name, config=config, dir=str(self.folder), reinit="finish_previous",
            mode=os.environ.get("WANDB_MODE"), settings=self.wandb.Settings(silent=True),  # stderr is the progress's
        )  # fmt: skip
        for step, metrics in _points(document):
            run.log(metrics, step=step)
        run.summary.update(summary(document))
        run.finish()
