"""The survey's two rows on ImageNet. A small task is the same one with other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from grace_bench.tasks import models
from grace_bench.tasks.images import ImageNetTask
from grace_bench.tasks.schedules import piecewise


class ResNet50(ImageNetTask):
    """ResNet-50 v1 on ImageNet. The peak learning rate is for each 256 images of all workers."""

    name = "resnet50"
    about = "ResNet-50 v1 on ImageNet"
    paper_row = "ResNet-50 / ImageNet"
    target = 0.7537
    batch, epochs = 64, 90
    per_256: ClassVar[float] = 0.128
    warm: ClassVar[float] = 5 / 90
    marks: ClassVar[Sequence[float]] = (30 / 90, 60 / 90, 80 / 90)
    network = models.ResNet50Model

    def lr(self, step: int) -> float:
        peak = self.per_256 * self.batch * self.workers / 256
        rise = min(1.0, (step + 1) / max(1.0, self.warm * self.steps))
        return rise * piecewise(step, self.steps, peak, self.marks)


class ResNet50Small(ResNet50):
    """A quarter of the width, one block in each stage, 64 x 64 pixels and 40 classes."""

    name = "resnet50_small"
    about = "ResNet with four bottlenecks, on shapes with textures"
    batch, four_worker_steps = 32, 500
    size, classes = 64, 41
    options: ClassVar[dict[str, Any]] = {"width": 16, "blocks": (1, 1, 1, 1)}
    per_256, marks = 0.2, (0.5, 0.8, 0.94)
    nesterov = True  # a short run gets further with it
    target = 0.45


class VGG19(ImageNetTask):
    """VGG-19 on ImageNet."""

    name = "vgg19"
    about = "VGG-19 on ImageNet"
    paper_row = "VGG19 / ImageNet"
    target = 0.6890
    batch, epochs = 64, 90
    local_decay = 5e-4
    peak = 0.01
    marks: ClassVar[Sequence[float]] = (30 / 90, 60 / 90)
    network = models.VGG19Model

    def model(self) -> nn.Module:
        return self.network(classes=self.classes, size=self.size, **self.options)

    def lr(self, step: int) -> float:
        return piecewise(step, self.steps, self.peak, self.marks)


class VGG11Small(VGG19):
    """Eight convolutions of a quarter of the channels and less, 64 x 64 pixels and 40 classes, no dropout."""

    name = "vgg11_small"
    about = "VGG with eight convolutions, on shapes with textures"
    batch, four_worker_steps = 32, 600
    local_decay = 1e-4
    size, classes = 64, 41
    options: ClassVar[dict[str, Any]] = {
        "widths": (16, 32, 64, 64, 64), "counts": (1, 1, 2, 2, 2), "hidden": 512, "scale": 2.0, "dropout": 0.0,
    }  # fmt: skip
    peak, marks = 0.02, (0.6, 0.85)
    nesterov = True  # a short run gets further with it
    target = 0.55
