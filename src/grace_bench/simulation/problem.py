"""The problem that the workers of a simulation learn: the digits, of which each worker sees its own mixture of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from grace_bench.tasks.digits import Digits
from grace_bench.tasks.pictures import ArrayPictures

CLASSES, PIXELS = 10, 64


class DigitsProblem:
    """Handwritten digits (1,437 to learn from, 360 to test), and a network with one hidden layer.

    Args:
        alpha: of the Dirichlet distribution from which each worker draws its mixture of classes, > 0: 0.1 gives it one or two
            of them, infinity all alike.
        batch: samples of one worker in one step, drawn with replacement.
        hidden: units.
        seed: of the data.
    """

    def __init__(self, alpha: float, batch: int, hidden: int, seed: int):
        self._alpha, self._batch, self._hidden, self._seed = alpha, batch, hidden, seed
        task = Digits()
        task.read(None)
        pictures = task.pictures
        assert isinstance(pictures, ArrayPictures)
        self._x, self._y = pictures.images.flatten(1) / 8 - 1, pictures.labels
        self._test = pictures.test_images.flatten(1) / 8 - 1, pictures.test_labels
        self._of = [torch.nonzero(self._y == label).view(-1).numpy() for label in range(CLASSES)]
        self._mixtures: dict[int, NDArray[Any]] = {}  # by worker, cumulated

    def model(self) -> dict[str, Tensor]:
        """Fresh parameters, the same each time: ``[h, 64], [h], [10, h], [10]``."""
        random, model = torch.Generator().manual_seed(self._seed), {}
        for name, rows, columns in (("hidden", self._hidden, PIXELS), ("head", CLASSES, self._hidden)):
            bound = columns**-0.5  # as torch.nn.Linear begins
            model[f"{name}.weight"] = (2 * torch.rand(rows, columns, generator=random) - 1) * bound
            model[f"{name}.bias"] = (2 * torch.rand(rows, generator=random) - 1) * bound
        return model

    def mixture(self, worker: int) -> NDArray[Any]:
        """The share of each class in this worker's data, ``[10]``."""
        if math.isinf(self._alpha):
            return np.full(CLASSES, 1 / CLASSES)
        return np.random.default_rng((self._seed, worker)).dirichlet(np.full(CLASSES, self._alpha))

    def gradients(self, model: dict[str, Tensor], workers: Sequence[int], step: int) -> dict[str, Tensor]:
        """By name ``[P, ...]``: the gradient of each of these workers on its batch of this step."""
        rows = []
        for worker in workers:
            if worker not in self._mixtures:
                self._mixtures[worker] = np.cumsum(self.mixture(worker))
            random = np.random.default_rng((self._seed, worker, step))
            classes = np.searchsorted(self._mixtures[worker], random.random(self._batch)).clip(max=CLASSES - 1)
            places = random.random(self._batch)
            rows.append(
                [self._of[label][int(at * len(self._of[label]))] for label, at in zip(classes, places, strict=True)]
            )
        index = torch.tensor(np.array(rows))
        own = {name: p.expand(len(rows), *p.shape).clone().requires_grad_() for name, p in model.items()}
        scores = _scores(own, self._x[index])  # [P, b, 10]
        losses = cross_entropy(scores.flatten(0, 1), self._y[index].view(-1), reduction="sum") / self._batch
        return dict(zip(own, torch.autograd.grad(losses, list(own.values())), strict=True))

    @torch.no_grad()
    def evaluate(self, model: dict[str, Tensor]) -> tuple[float, float]:
        """Loss and accuracy on the test set."""
        x, y = self._test
        scores = _scores({name: p[None] for name, p in model.items()}, x[None])[0]
        return float(cross_entropy(scores, y)), float((scores.argmax(1) == y).float().mean())


def _scores(model: dict[str, Tensor], x: Tensor) -> Tensor:
    """``[P, b, 10]``, of P models and their batches ``[P, b, 64]``."""
    hidden = torch.baddbmm(model["hidden.bias"][:, None], x, model["hidden.weight"].mT).relu()
    return torch.baddbmm(model["head.bias"][:, None], hidden, model["head.weight"].mT)
