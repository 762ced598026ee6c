from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from grace.bench.extras import need
from grace.bench.tasks import metrics
from grace.bench.tasks.schedules import warm_cosine
from grace.bench.tasks.suite import Loaded, SuiteTask, loaded
from grace.errors import DataError

CLASSES = 10
_TEST_EVERY = 5  # every fifth sample is a test sample


def _table() -> NDArray[np.float64]:
    """``[1797, 65]``: 64 pixels, then the label. From scikit-learn's file where it lies at its place: to import
    scikit-learn takes every worker longer than all else that it does before its first step.
    """
    found = importlib.util.find_spec("sklearn")
    if found is not None and found.origin is not None:
        file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            return np.loadtxt(file, delimiter=",")
    digits = need("sklearn.datasets", extra="bench").load_digits()
    return np.concatenate([digits.data, digits.target[:, None]], axis=1)


class _Block(nn.Module):
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


class Digits(SuiteTask):
    """Handwritten digits: 1,797 grey images of 8 x 8 pixels, real data that come with scikit-learn; ten classes.

    A pre-activation residual network of 19,074 parameters in 23 tensors; the four of 1,024 elements and more hold
    nine tenths of them. SGD with momentum 0.9; the learning rate rises to 0.1 over the first tenth and falls to 0 on a
    cosine. The test set is every fifth sample: 360 images.
    """

    metric = "accuracy"
    target = 0.95
    batch = 32
    epochs = 14
    local_decay = 1e-4
    peak = 0.1
    widths = (8, 16, 32)

    synthetic_samples = 1437

    def read(self, root: Path | None) -> Loaded:
        if root is not None:
            raise DataError(f"the digits come with scikit-learn, not from {root}: leave --data out")
        table = _table()
        images = torch.from_numpy(table[:, :64].astype(np.float32)).view(-1, 1, 8, 8) / 8 - 1  # 0..16 -> -1..1
        labels = torch.from_numpy(table[:, 64].astype(np.int64))
        test = torch.arange(len(labels)) % _TEST_EVERY == _TEST_EVERY - 1
        self.images, self.labels = images[~test], labels[~test]
        self.test_images, self.test_labels = images[test], labels[test]
        return loaded("digits", {"table": table}, len(self.labels))

    def model(self) -> nn.Module:
        first, *_, last = self.widths
        layers: list[nn.Module] = [nn.Conv2d(1, first, 3, padding=1, bias=False)]
        before = first
        for index, channels in enumerate(self.widths):
            layers.append(_Block(before, channels, stride=1 if index == 0 else 2))
            before = channels
        layers += [nn.BatchNorm2d(last), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, CLASSES)]
        return nn.Sequential(*layers)

    def batches_of(self, rank: int, world: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        share = self.steps_per_epoch(world) * self.batch
        epoch = 0
        while True:
            order = np.random.default_rng((seed, epoch)).permutation(len(self.labels))
            mine = torch.from_numpy(order[rank::world][:share])
            for index in torch.split(mine, self.batch):
                yield self.images[index], self.labels[index]
            epoch += 1

    def synthetic_batch(self, random: np.random.RandomState) -> tuple[Tensor, Tensor]:
        images = random.standard_normal((self.batch, 1, 8, 8)).astype(np.float32)
        return torch.from_numpy(images), torch.from_numpy(random.randint(0, CLASSES, self.batch))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.peak, momentum=0.9)

    def lr(self, step: int) -> float:
        return warm_cosine(step, self.steps, self.peak, max(1, self.steps // 10))

    def measured(self, model: nn.Module) -> dict[str, float]:
        logits = model(self.test_images)
        loss = functional.cross_entropy(logits, self.test_labels).item()
        return {"accuracy": metrics.top1(logits, self.test_labels), "loss": loss}
