"""Runs that have ended, for TensorBoard and for Weights & Biases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from grace.bench.extras import need

_NOT_METRICS = ("epoch", "step", "seconds", "sent_bytes")


class Tracker(Protocol):
    """What is told of each run."""

    def log(self, name: str, document: dict[str, Any]) -> None:
        """A run with a result; ``name`` is its file's, without the ending."""


def summary(document: dict[str, Any]) -> dict[str, float]:
    """The numbers of a run that are not part of its curve; without those that it has not."""
    times, traffic = document["time"], document["traffic"]
    found = {
        "final": document["final"], "best": document["best"], "step_ms": times["step_ms"]["median"],
        "compute_ms": times["compute_ms"], "exposed_ms": times["exposed_ms"], "codec_ms": times["codec_ms"],
        "samples_per_second": times["samples_per_second"], "sent_bytes_per_step": traffic["sent_bytes_per_step"],
        "target_seconds": (document["target"] or {}).get("seconds"),
    }  # fmt: skip
    return {key: float(value) for key, value in found.items() if value is not None}


def _points(document: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """Step and metrics of each evaluation."""
    return [
        (point["step"], {key: value for key, value in point.items() if key not in _NOT_METRICS and value is not None})
        for point in document["curve"]
    ]


class TensorBoard:
    """One folder for each run under ``folder``.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: Path):
        need("tensorboard", extra="tensorboard")
        self.folder = folder

    def log(self, name: str, document: dict[str, Any]) -> None:
        """See :class:`Tracker`."""
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.folder / name)) as writer:
            for step, metrics in _points(document):
                for key, value in metrics.items():
                    writer.add_scalar(key, value, step)
            for key, value in summary(document).items():
                writer.add_scalar(f"summary/{key}", value, document["steps"])


class Wandb:
    """One run in ``project`` for each run here; WANDB_MODE=offline keeps them in ``folder``.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, project: str, folder: Path):
        self.wandb, self.project, self.folder = need("wandb", extra="wandb"), project, folder

    def log(self, name: str, document: dict[str, Any]) -> None:
        """See :class:`Tracker`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = {key: document[key] for key in ("task", "method", "workers", "seed", "granularity", "link", "family")}
        run = self.wandb.init(
            project=self.project, name=name, config=config, dir=str(self.folder), reinit="finish_previous",
            mode=os.environ.get("WANDB_MODE"), settings=self.wandb.Settings(silent=True),  # stderr is the progress's
        )  # fmt: skip
        for step, metrics in _points(document):
            run.log(metrics, step=step)
        run.summary.update(summary(document))
        run.finish()
