"""The survey's row on DAGM2007: where is the defect?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from grace_bench.tasks import metrics, models
from grace_bench.tasks.embedded.defects import defects
from grace_bench.tasks.files.dagm import read_dagm
from grace_bench.tasks.rmsprop import TensorFlowRMSprop
from grace_bench.tasks.suite import DataSet, SuiteTask, epochs_of, tensor

Batch = tuple[Tensor, Tensor]
_DICE_FROM = 0.3
_PERIODS = 5  # of the learning rate in a run
_TEST_BATCH = 25


class UNet(SuiteTask):
    """TinyUNet on DAGM2007. It trains only on the defective images, flipped and turned at random. The loss is the Dice
    loss where that of the worker's own batch is below 0.3, and cross-entropy elsewhere. All test images are evaluated.

    Attributes:
        kind: the class of DAGM2007, 1 to 10. size: pixels of a side.
    """

    name = "unet"
    about = "U-Net for the defects of DAGM2007"
    paper_row = "U-Net / DAGM2007"
    target = 0.964
    metric = "paper_iou"
    batch, iterations = 2, 2500
    local_decay = 1e-5
    synthetic_samples = 79
    slots = 3
    kind: ClassVar[int] = 1
    size: ClassVar[int] = 512
    rate: ClassVar[float] = 1e-4
    network = models.UNetModel

    def read(self, root: Path | None) -> DataSet:
        arrays = defects(self.kind, self.size) if root is None else read_dagm(root, self.kind, self.size)
        self.images, self.masks = tensor(arrays["images"]), tensor(arrays["masks"])
        self.test_images, self.test_masks = tensor(arrays["test_images"]), tensor(arrays["test_masks"])
        name = "textures with defects" if root is None else f"DAGM2007 class {self.kind}"
        return DataSet.of(name, arrays, len(self.images), procedural=root is None)

    def batches_of(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        for index, random in epochs_of(self.samples, rank, world, self.batch, seed):
            at = torch.from_numpy(index.astype(np.int64))
            pairs = torch.stack([self.images[at].float() / 127.5 - 1, self.masks[at].float() / 255], dim=1)
            for k in range(len(at)):
                pair = pairs[k].flip(2) if random.randint(2) else pairs[k]
                pairs[k] = torch.rot90(pair, random.randint(3), (1, 2))  # 0 to 2 quarter turns, as in the original
            yield pairs[:, :1], pairs[:, 1:]

    def synthetic_batch(self, random: np.random.RandomState) -> Batch:
        images = random.standard_normal((self.batch, 1, self.size, self.size)).astype(np.float32)
        return torch.from_numpy(images), torch.from_numpy((images > 2).astype(np.float32))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, masks = batch
        logits = model(images)
        probabilities = logits.sigmoid()
        dice = 1 - (2 * (probabilities * masks).sum() + 1) / (probabilities.sum() + masks.sum() + 1)
        return torch.where(dice < _DICE_FROM, dice, functional.binary_cross_entropy_with_logits(logits, masks))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return TensorFlowRMSprop(model.parameters(), self.rate, decay=0.9, momentum=0.8, centered=True)

    def lr(self, step: int) -> float:
        power: float = 0.8 ** (_PERIODS * step // max(1, self.steps))
        return self.rate * power

    def measure(self, model: nn.Module) -> dict[str, float]:
        parts = [
            model(x[:, None].float() / 127.5 - 1).sigmoid()[:, 0] for x in torch.split(self.test_images, _TEST_BATCH)
        ]
        return metrics.segmentation(torch.cat(parts), self.test_masks.float() / 255)


class UNetSmall(UNet):
    """A quarter of the channels, 128 x 128 pixels, a fiercer learning rate."""

    name = "unet_small"
    about = "U-Net with a quarter of the channels, on textures with defects"
    batch, iterations, four_worker_steps = 4, 0, 400
    kind, size, rate = 5, 128, 1e-3
    options: ClassVar[dict[str, Any]] = {"first": 8, "downs": (8, 16, 32), "bottom": 64, "last": 8}
    target = 0.93
