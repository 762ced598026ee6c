"""The tasks that classify images: the rows on CIFAR-10 and on ImageNet, in the paper's size and small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from grace_bench.tasks import metrics
from grace_bench.tasks.embedded.shapes import shapes
from grace_bench.tasks.files.cifar10 import read_cifar10
from grace_bench.tasks.pictures import ArrayPictures, Augmentation, FolderPictures, Pictures
from grace_bench.tasks.suite import DataSet, SuiteTask, epochs_of

Batch = tuple[Tensor, Tensor]


class ImageTask(SuiteTask):
    """Cross-entropy and SGD with momentum; top-1 on the test set.

    Attributes:
        size: pixels of a side. channels: of an image. classes: of the model. peak: the largest learning rate.
        embedded: images of the embedded set to train and to test with.
    """

    metric = "top1"
    local_decay = 1e-4
    size: ClassVar[int] = 32
    channels: ClassVar[int] = 3
    classes: ClassVar[int] = 11
    peak: ClassVar[float] = 0.1
    momentum: ClassVar[float] = 0.9
    nesterov: ClassVar[bool] = False
    embedded: ClassVar[tuple[int, int]] = (50_000, 10_000)
    augmentation: ClassVar[Augmentation] = Augmentation()

    pictures: Pictures

    def batches_of(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        for index, random in epochs_of(self.samples, rank, world, self.batch, seed):
            yield self.pictures.training(index, random)

    def model(self) -> nn.Module:
        return self.network(classes=self.classes, **self.options)

    def synthetic_batch(self, random: np.random.RandomState) -> Batch:
        images = random.standard_normal((self.batch, self.channels, self.size, self.size)).astype(np.float32)
        return torch.from_numpy(images), torch.from_numpy(random.randint(0, self.classes, self.batch))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.peak, momentum=self.momentum, nesterov=self.nesterov)

    def measure(self, model: nn.Module) -> dict[str, float]:
        pairs = [(model(images), labels) for images, labels in self.pictures.testing()]
        logits, labels = torch.cat([logits for logits, _ in pairs]), torch.cat([labels for _, labels in pairs])
        return {self.metric: metrics.top1(logits, labels), "loss": functional.cross_entropy(logits, labels).item()}


class CifarTask(ImageTask):
    """Images of 32 x 32 pixels: CIFAR-10, or the ten embedded shapes."""

    synthetic_samples = 50_000

    def read(self, root: Path | None) -> DataSet:
        arrays = shapes(*self.embedded) if root is None else read_cifar10(root)
        self.pictures = ArrayPictures(arrays, self.augmentation, self.size)
        name = "shapes" if root is None else "CIFAR-10"
        return DataSet.of(name, arrays, len(arrays["labels"]), procedural=root is None)


class ImageNetTask(ImageTask):
    """Images of ImageNet's folders, or embedded ones of 64 x 64 pixels and 40 classes, enlarged where need be.

    A small model takes as many of ImageNet's classes as it has room for, the first by name.
    """

    size = 224
    classes = 1001
    embedded = (10_000, 2_000)
    synthetic_samples = 1_281_167

    def read(self, root: Path | None) -> DataSet:
        if root is None:
            arrays = shapes(*self.embedded, size=64, classes=40, noise=0.04)
            self.pictures = ArrayPictures(arrays, self.augmentation, self.size, first=1)
            return DataSet.of("shapes with textures", arrays, len(arrays["labels"]), procedural=True)
        folder = FolderPictures(root, self.size, self.classes - 1)
        self.pictures = folder
        return DataSet("ImageNet", False, len(folder.train.files), folder.digest)
