"""The survey's row on MovieLens-20M: who will touch what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from grace_bench.tasks import metrics, models
from grace_bench.tasks.embedded.feedback import feedback
from grace_bench.tasks.files.movielens import read_movielens
from grace_bench.tasks.suite import DataSet, SuiteTask, epochs_of

Batch = tuple[Tensor, Tensor, Tensor]
_USERS_AT_ONCE = 5000  # when evaluating


class NCF(SuiteTask):
    """Neural matrix factorization on MovieLens-20M. Four negatives for each positive, uniform and not verified, are
    drawn anew in each epoch. Quality is HR@10: the held-out item is among the ten best of 101.

    Attributes:
        users, items: rows of the model's tables; data that have more make them larger.
        embedded: users and items of the embedded set.
    """

    name = "ncf"
    about = "recommendation on MovieLens-20M"
    paper_row = "NCF / MovieLens-20M"
    target = 0.9598
    metric = "hr10"
    batch_in_all = 1_048_576
    epochs = 30
    synthetic_samples = 19_861_770 * 5
    slots = 2
    users: int = 138_493
    items: int = 26_744
    negatives: ClassVar[int] = 4
    network = models.NCFModel
    rate: ClassVar[float] = 0.0045
    embedded: ClassVar[tuple[int, int]] = (6_000, 2_000)

    candidates: Tensor | None = None  # [users, 101], the held-out item last

    def read(self, root: Path | None) -> DataSet:
        arrays = feedback(*self.embedded) if root is None else read_movielens(root)
        self.pairs, self.held = arrays["pairs"], arrays["held"]
        self.touched = 1 + int(max(self.pairs[:, 1].max(), self.held.max()))  # items in the data
        self.users, self.items = max(self.users, len(self.held)), max(self.items, self.touched)
        self.candidates = None
        name = "latent feedback" if root is None else "MovieLens-20M"
        return DataSet.of(name, arrays, len(self.pairs) * (1 + self.negatives), procedural=root is None)

    def model(self) -> nn.Module:
        return self.network(self.users, self.items, **self.options)

    def batches_of(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        count = len(self.pairs)
        for index, random in epochs_of(self.samples, rank, world, self.batch, seed):
            pairs, positive = self.pairs[index % count], index < count
            items = np.where(positive, pairs[:, 1], random.randint(0, self.touched, self.batch))
            labels = torch.from_numpy(positive.astype(np.float32))
            yield torch.from_numpy(pairs[:, 0].copy()), torch.from_numpy(items), labels

    def synthetic_batch(self, random: np.random.RandomState) -> Batch:
        users, items = random.randint(0, self.users, self.batch), random.randint(0, self.items, self.batch)
        labels = (random.randint(0, 1 + self.negatives, self.batch) == 0).astype(np.float32)
        return torch.from_numpy(users), torch.from_numpy(items), torch.from_numpy(labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        users, items, labels = batch
        return functional.binary_cross_entropy_with_logits(model(users, items), labels)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.rate, betas=(0.25, 0.5), eps=1e-8)

    def lr(self, step: int) -> float:
        return self.rate

    def measure(self, model: nn.Module) -> dict[str, float]:
        if self.candidates is None:  # only the worker that evaluates draws them
            untouched = metrics.negatives(self.pairs, self.held, self.touched)
            self.candidates = torch.from_numpy(np.concatenate([untouched, self.held[:, None]], axis=1))
        scores = []
        for users in torch.split(torch.arange(len(self.held)), _USERS_AT_ONCE):
            items = self.candidates[users]
            scores.append(model(users[:, None].expand_as(items).reshape(-1), items.reshape(-1)).view_as(items))
        hits, gain = metrics.hit_rate(torch.cat(scores), self.candidates)
        return {"hr10": hits, "ndcg10": gain}


class NCFSmall(NCF):
    """Tables of 6,000 users and 2,000 items, a quarter of the widths, no dropout."""

    name = "ncf_small"
    about = "recommendation, on latent feedback"
    batch, batch_in_all, four_worker_steps = 1024, 0, 1500
    users, items = 6_000, 2_000
    options: ClassVar[dict[str, Any]] = {"factors": 16, "layers": (64, 64, 32, 16), "dropout": 0.0}
    target = 0.54
