"""Common parts of trainings on the digits: the data, the numbers of a run, and what each rank tells of it."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import numpy as np

from grace.adapters.handover import Handover
from grace_bench.tasks.digits import Digits

METHODS = ("none", "topk:ratio=0.01")
WORLD = 4
SAMPLES, BATCH, EPOCHS = 224, 16, 40  # of each rank, so that all make the same number of steps
STEPS = EPOCHS * SAMPLES // BATCH
WARM = STEPS // 10  # steps in which the learning rate rises; then it falls to 0 on a cosine
PEAK, MOMENTUM = 0.05, 0.9


class Data(NamedTuple):
    """Pictures ``[n, 8, 8, 1]`` of numbers between -1 and 1, and their labels."""

    x: Any
    y: Any
    test_x: Any
    test_y: Any


class Told(NamedTuple):
    """The report of a rank on a training; ``sent`` is in bytes."""

    rank: int
    method: str
    accuracy: float
    steps: int
    sent: int


def load(rank: int) -> Data:
    """A rank's own quarter of the pictures to train on, and all to test on. These are half of the data set: of the 359 that
    usually test, four make more than a point, and chance would decide.
    """
    digits = Digits()
    digits.read(None)
    pictures = digits.pictures
    x = np.concatenate([pictures.images, pictures.test_images]).transpose(0, 2, 3, 1).astype(np.float32) / 8 - 1
    y = np.concatenate([pictures.labels, pictures.test_labels])
    own = slice(2 * rank, 2 * WORLD * SAMPLES, 2 * WORLD)
    return Data(x[own], y[own], x[1::2], y[1::2])


def tell(method: str, accuracy: float, handle: Handover) -> None:
    told = Told(handle.rank, method, accuracy, handle.stats.steps, handle.stats.traffic.sent)
    os.write(1, f"\n{json.dumps(told._asdict())}\n".encode())  # at once, or lines of several ranks would mix


def read(output: str) -> dict[str, list[Told]]:
    """The reports of the ranks, by method."""
    told = [Told(**json.loads(line)) for line in output.splitlines() if line.startswith('{"rank"')]
    return {method: sorted(report for report in told if report.method == method) for method in METHODS}
