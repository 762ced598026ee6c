"""The survey's four rows on CIFAR-10. A small task is the same one with other numbers."""

from __future__ import annotations

from typing import Any, ClassVar

from grace_bench.tasks import models
from grace_bench.tasks.images import CifarTask
from grace_bench.tasks.pictures import Augmentation
from grace_bench.tasks.schedules import interpolate, piecewise


class _StepSchedule(CifarTask):
    """The learning rate falls to a tenth at each mark."""

    batch = 256
    epochs = 328
    marks: ClassVar[tuple[float, ...]] = (163 / 328, 245 / 328)

    def lr(self, step: int) -> float:
        return piecewise(step, self.steps, self.peak, self.marks)


class ResNet20(_StepSchedule):
    """ResNet-20 v2 on CIFAR-10."""

    name = "resnet20"
    about = "ResNet-20 v2 on CIFAR-10"
    paper_row: ClassVar[str | None] = "ResNet-20 / CIFAR-10"
    target = 0.9086
    network = models.ResNet20Model


class ResNet20Small(ResNet20):
    """Half the channels; norms that forget within a short run."""

    name = "resnet20_small"
    about = "ResNet-20 with half the channels, on shapes"
    batch, four_worker_steps, embedded = 32, 500, (10_000, 2_000)
    classes = 10
    options: ClassVar[dict[str, Any]] = {"widths": (8, 16, 32), "decay": 0.9, "eps": 1e-5}
    target = 0.88


class ResNet8Tiny(ResNet20Small):
    """ResNet with one block a stage instead of three, twice the channels of the small one, images of 16 x 16 pixels."""

    name = "resnet8_tiny"
    about = "ResNet-8 on shapes of 16 x 16 pixels, long runs"
    paper_row = None  # a row has two sizes, and this is a third
    batch, four_worker_steps, size = 16, 5000, 16
    options: ClassVar[dict[str, Any]] = {"widths": (16, 32, 64), "blocks": 1, "decay": 0.9, "eps": 1e-5}
    target = 0.80


class DenseNet40(_StepSchedule):
    """DenseNet-40 (k = 12) on CIFAR-10."""

    name = "densenet40_k12"
    about = "DenseNet-40 (k = 12) on CIFAR-10"
    paper_row = "DenseNet40-K12 / CIFAR-10"
    target = 0.9207
    network = models.DenseNet


class DenseNetSmall(DenseNet40):
    """Three stages of four layers, k = 8."""

    name = "densenet_small"
    about = "DenseNet with 12 layers (k = 8), on shapes"
    batch, four_worker_steps, embedded = 32, 400, (10_000, 2_000)
    classes = 10
    options: ClassVar[dict[str, Any]] = {"growth": 8, "layers": (4, 4, 4), "stem": 8}
    nesterov = True  # a short run gets further with it
    target = 0.68


class ResNet9(CifarTask):
    """The DAWNBench network on CIFAR-10; its own schedule, normalization and cutout."""

    name = "resnet9"
    about = "ResNet-9 on CIFAR-10"
    paper_row = "ResNet-9 / CIFAR-10"
    target = 0.9167
    batch_in_all = 512
    epochs = 24
    local_decay = 5e-4
    peak, nesterov, classes = 0.4, True, 10
    augmentation = Augmentation(reflect=True, cutout=8, mean=(125.31, 122.95, 113.87), std=(62.99, 62.09, 66.70))
    network = models.ResNet9Model

    def lr(self, step: int) -> float:
        return interpolate(step, self.steps, self.peak, (0, 5 / 24, 1), (0, 1, 0))


class ResNet9Small(ResNet9):
    """An eighth of the channels."""

    name = "resnet9_small"
    about = "ResNet-9 with an eighth of the channels, on shapes"
    batch, batch_in_all, four_worker_steps, embedded = 32, 0, 400, (10_000, 2_000)
    augmentation = Augmentation(reflect=True, cutout=8)
    options: ClassVar[dict[str, Any]] = {"widths": (8, 16, 32, 64)}
    target = 0.90


class VGG16(_StepSchedule):
    """VGG16 on CIFAR-10."""

    name = "vgg16_cifar"
    about = "VGG16 on CIFAR-10"
    paper_row = "VGG16 / CIFAR-10"
    target = 0.8632
    network = models.VGG16Cifar


class VGG16Small(VGG16):
    """A quarter of the channels and less; started with twice the variance, for a short run."""

    name = "vgg16_small"
    about = "VGG16 with a quarter of the channels and less, on shapes"
    batch, four_worker_steps, embedded = 32, 800, (10_000, 2_000)
    classes = 10
    options: ClassVar[dict[str, Any]] = {"widths": (16, 32, 64, 64, 64), "hidden": 64, "scale": 2.0}
    peak, marks = 0.02, (0.7, 0.9)
    target = 0.80
