"""The survey's two rows on ImageNet. A small task is the same one with other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from grace.bench.tasks import models
from grace.bench.tasks.images import ImageNetTask
from grace.bench.tasks.schedules import piecewise


class ResNet50(ImageNetTask):
    """ResNet-50 v1 on ImageNet. The peak learning rate is for each 256 images of all workers."""

    name = "resnet50"
    about = "ResNet-50 v1 on ImageNet"
    model_size = 25_559_081, 161
    paper_row = "ResNet-50 / ImageNet"
    target = 0.7537
    batch, epochs = 64, 90
    per_256: ClassVar[float] = 0.128
    warm: ClassVar[float] = 5 / 90
    marks: ClassVar[Sequence[float]] = (30 / 90, 60 / 90, 80 / 90)
    width: ClassVar[int] = 64
    blocks: ClassVar[Sequence[int]] = (3, 4, 6, 3)

    def model(self) -> nn.Module:
        return models.ResNet50(self.width, self.blocks, self.classes)

    def lr(self, step: int) -> float:
        peak = self.per_256 * self.batch * self.workers / 256
        rise = min(1.0, (step + 1) / max(1.0, self.warm * self.steps))
        return rise * piecewise(step, self.steps, peak, self.marks)


class ResNet50Small(ResNet50):
    """A quarter of the width, one block in each stage, 64 x 64 pixels and 40 classes."""

    name = "resnet50_small"
    about = "ResNet with four bottlenecks, on shapes with textures"
    model_size = 527_417, 53
    batch, four_worker_steps = 32, 500
    size, classes, width, blocks = 64, 41, 16, (1, 1, 1, 1)
    per_256, marks = 0.2, (0.5, 0.8, 0.94)
    nesterov = True  # a short run gets further with it
    target = 0.45


class VGG19(ImageNetTask):
    """VGG-19 on ImageNet."""

    name = "vgg19"
    about = "VGG-19 on ImageNet"
    model_size = 143_671_337, 38
    paper_row = "VGG19 / ImageNet"
    target = 0.6890
    batch, epochs = 64, 90
    local_decay = 5e-4
    peak = 0.01
    marks: ClassVar[Sequence[float]] = (30 / 90, 60 / 90)
    widths: ClassVar[Sequence[int]] = (64, 128, 256, 512, 512)
    counts: ClassVar[Sequence[int]] = (2, 2, 4, 4, 4)
    hidden: ClassVar[int] = 4096
    scale: ClassVar[float] = 1.0
    dropout: ClassVar[float] = 0.5

    def model(self) -> nn.Module:
        return models.VGG19(
            self.widths, self.counts, self.hidden, self.classes, size=self.size, scale=self.scale, dropout=self.dropout
        )

    def lr(self, step: int) -> float:
        return piecewise(step, self.steps, self.peak, self.marks)


class VGG11Small(VGG19):
    """Eight convolutions of a quarter of the channels and less, 64 x 64 pixels and 40 classes, no dropout."""

    name = "vgg11_small"
    about = "VGG with eight convolutions, on shapes with textures"
    model_size = 623_497, 22
    batch, four_worker_steps = 32, 600
    local_decay = 1e-4
    size, classes = 64, 41
    widths, counts, hidden, scale, dropout = (16, 32, 64, 64, 64), (1, 1, 2, 2, 2), 512, 2.0, 0.0
    peak, marks = 0.02, (0.6, 0.85)
    nesterov = True  # a short run gets further with it
    target = 0.55
