from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from grace.errors import DataError
from grace_bench.extras import need
from grace_bench.tasks.embedded.chunks import Array
from grace_bench.tasks.images import Batch, ImageTask
from grace_bench.tasks.pictures import ArrayPictures, Augmentation
from grace_bench.tasks.schedules import warm_cosine
from grace_bench.tasks.suite import DataSet

_TEST_EVERY = 5  # every fifth sample is a test sample


def _read_table() -> Array:
    """``[1797, 65]``: 64 pixels, then the label. Read from scikit-learn's file if it is in its usual place:
    importing scikit-learn takes a worker longer than everything else before its first step.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is not None and spec.origin is not None:
        file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            return np.loadtxt(file, delimiter=",")
    digits = need("sklearn.datasets", extra="bench").load_digits()
    return np.concatenate([digits.data, digits.target[:, None]], axis=1)


class _DigitsBlock(nn.Module):
    """Two 3 x 3 convolutions behind their norms; the shortcut has no parameters: it subsamples and pads channels."""

    def __init__(self, before: int, channels: int, stride: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.stride, self.more = stride, channels - before

    def forward(self, x: Tensor) -> Tensor:
        shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        inner = self.conv1(functional.relu(self.norm1(x)))
        out: Tensor = shortcut + self.conv2(functional.relu(self.norm2(inner)))
        return out


class Digits(ImageTask):
    """Handwritten digits: 1,797 gray images of 8 x 8 pixels, real data that come with scikit-learn; ten classes.

    A pre-activation residual network of 19,074 parameters in 23 tensors; the four of 1,024 elements and more hold
    nine tenths of them. SGD with momentum 0.9; the learning rate rises to 0.1 over the first tenth and falls to 0 on a
    cosine. The test set is every fifth sample: 360 images.
    """

    name = "digits"
    about = "handwritten digits, a small residual network: real data"
    metric = "accuracy"
    target = 0.95
    epochs = 14
    size, channels, classes = 8, 1, 10
    augmentation = Augmentation(pad=0, flip=False, mean=(8.0,), std=(8.0,))  # 0..16 -> -1..1
    widths = (8, 16, 32)
    synthetic_samples = 1437

    def read(self, root: Path | None) -> DataSet:
        if root is not None:
            raise DataError(f"the digits come with scikit-learn, not from {root}: leave --data out")
        table = _read_table()
        images, labels = table[:, :64].astype(np.uint8).reshape(-1, 1, 8, 8), table[:, 64].astype(np.int64)
        test = np.arange(len(labels)) % _TEST_EVERY == _TEST_EVERY - 1
        arrays = {"images": images[~test], "labels": labels[~test]}
        arrays |= {"test_images": images[test], "test_labels": labels[test]}
        self.pictures = ArrayPictures(arrays, self.augmentation, self.size)
        return DataSet.of("digits", {"table": table}, len(arrays["labels"]))

    def model(self) -> nn.Module:
        first, *_, last = self.widths
        layers: list[nn.Module] = [nn.Conv2d(1, first, 3, padding=1, bias=False)]
        for index, (before, channels) in enumerate(itertools.pairwise((first, *self.widths))):
            layers.append(_DigitsBlock(before, channels, stride=2 if index else 1))
        head = nn.Linear(last, self.classes)
        return nn.Sequential(*layers, nn.BatchNorm2d(last), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)

    def batches_of(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        share, unused = self.steps_per_epoch(world) * self.batch, np.random.RandomState(0)
        for epoch in itertools.count():
            order = np.random.default_rng((seed, epoch)).permutation(self.samples)
            indices = order[rank::world][:share]
            for start in range(0, share, self.batch):
                yield self.pictures.training(indices[start : start + self.batch], unused)

    def lr(self, step: int) -> float:
        return warm_cosine(step, self.steps, self.peak, max(1, self.steps // 10))


class DigitsWide(Digits):
    """The digits, by a network whose gradient matters: two hidden layers of 1,024 units, 1,126,410 parameters in 6 tensors.

    A step computes a few milliseconds, and its gradient has 4.5 MB: over 100 Mbit/s four workers wait half a second for it.
    SGD with momentum 0.9; the learning rate rises to 0.02 over the first tenth and falls to 0 on a cosine.
    """

    name = "digits_wide"
    about = "handwritten digits, a wide network of two hidden layers: real data"
    target = 0.95
    hidden = 1024
    peak = 0.02

    def model(self) -> nn.Module:
        pixels, hidden = self.channels * self.size**2, self.hidden
        return nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, self.classes),
        )  # fmt: skip
