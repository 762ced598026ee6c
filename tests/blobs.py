"""A task of a user's own, as small as one can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from grace_bench.tasks import Task


class Blobs(Task):
    """Four clouds of points in 32 dimensions, told apart by a perceptron: drawn on the spot, as small as a task can be."""

    batch = 16
    epochs = 1
    classes, features, samples = 4, 32, 1024

    def load(self, root: Path | None) -> None:
        generator = torch.Generator().manual_seed(0)
        centers = torch.randn(self.classes, self.features, generator=generator)
        self.labels = torch.arange(self.samples) % self.classes
        self.points = centers[self.labels] + torch.randn(self.samples, self.features, generator=generator)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.features, 64), nn.ReLU(), nn.Linear(64, self.classes))

    def steps_per_epoch(self, world: int) -> int:
        return self.samples // world // self.batch

    def batches(self, rank: int, world: int, seed: int) -> Any:
        epoch = 0
        while True:
            order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(seed + (epoch << 16)))
            for index in torch.split(order[rank::world], self.batch)[: self.steps_per_epoch(world)]:
                yield self.points[index], self.labels[index]
            epoch += 1

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        points, labels = batch
        return functional.cross_entropy(model(points), labels)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def lr(self, step: int) -> float:
        return 0.1

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"accuracy": (model(self.points).argmax(dim=1) == self.labels).float().mean().item()}

    def data_info(self) -> Any:
        return {"name": "blobs", "procedural": True, "digest": "", "source": "embedded"}
