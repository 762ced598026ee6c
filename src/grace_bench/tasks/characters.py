"""A decoder-only transformer on text, which the survey does not have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from grace.errors import DataError
from grace_bench.tasks import models
from grace_bench.tasks.embedded.chunks import Array, stream
from grace_bench.tasks.embedded.stdlib import stdlib_bytes
from grace_bench.tasks.files import text as files
from grace_bench.tasks.schedules import warm_cosine
from grace_bench.tasks.suite import DataSet, SuiteTask

Batch = tuple[Tensor, Tensor]
_BYTES = 256
_WINDOWS_AT_ONCE = 16  # when evaluating


class GPT2(SuiteTask):
    """GPT-2 small on bytes, or on files of tokens: random windows of the text. Quality is bits per byte, or for tokens
    the loss in nats, on windows spread evenly over the test text.

    Attributes:
        tokens: rows of the embedding. context: tokens of a window. windows: how many are evaluated.
    """

    name = "gpt2_small"
    about = "GPT-2 small on text; not in the survey"
    metric = "bits_per_byte"
    better: Literal["higher", "lower"] = "lower"
    batch, epochs, clip = 8, 1, 1.0
    synthetic_samples = 90_000_000 // 1024  # as enwik8
    slots = 2
    tokens: ClassVar[int] = 50_257
    context: ClassVar[int] = 1024
    network = models.GPT
    rate: ClassVar[float] = 6e-4
    warm: ClassVar[int] = 200
    decay: ClassVar[float] = 0.1
    windows: ClassVar[int] = 96

    def read(self, root: Path | None) -> DataSet:
        self.metric = "bits_per_byte"
        if root is not None and self.tokens > _BYTES and files.has_tokens(root):
            self.metric = "loss"
            self.text, name = files.read_tokens(root), "tokens"
        elif root is not None:
            self.text, name = files.read_text(root), "enwik8" if (root / "enwik8").is_file() else "text"
        else:
            self.text, name = stdlib_bytes(), "standard library bytes"
        for part in ("train", "test"):
            if len(self.text[part]) <= self.context + 1:
                size = len(self.text[part])
                raise DataError(f"the {part} text has {size} tokens; a window needs at least {self.context + 2}")
        return DataSet.of(name, self.text, len(self.text["train"]) // self.context)

    def model(self) -> nn.Module:
        return self.network(self.tokens, self.context, **self.options)

    def batches_of(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        train, random = self.text["train"], stream(seed, 1 + rank)
        while True:
            yield self._windows(train, random.randint(0, len(train) - self.context - 1, self.batch))

    def _windows(self, text: Array, starts: Array) -> Batch:
        x = np.stack([text[start : start + self.context + 1] for start in starts]).astype(np.int64)
        if (largest := int(x.max())) >= self.tokens:
            raise DataError(f"the text has the token {largest}; the model has {self.tokens}, from 0 on")
        return torch.from_numpy(x[:, :-1].copy()), torch.from_numpy(x[:, 1:].copy())

    def synthetic_batch(self, random: np.random.RandomState) -> Batch:
        x = torch.from_numpy(random.randint(0, self.tokens, (self.batch, self.context + 1)))
        return x[:, :-1], x[:, 1:]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        others = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": self.decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.95))

    def lr(self, step: int) -> float:
        return warm_cosine(step, self.steps, self.rate, self.warm, floor=0.1)

    def measure(self, model: nn.Module) -> dict[str, float]:
        test = self.text["test"]
        starts = np.linspace(0, len(test) - self.context - 1, self.windows).astype(int)
        nats = 0.0
        for k in range(0, self.windows, _WINDOWS_AT_ONCE):
            some = starts[k : k + _WINDOWS_AT_ONCE]
            nats += self.loss(model, self._windows(test, some)).item() * len(some) / self.windows
        return {"loss": nats, **({"bits_per_byte": nats / math.log(2)} if self.metric == "bits_per_byte" else {})}


class GPTSmall(GPT2):
    """Four layers of width 128 on bytes, windows of 128."""

    name = "gpt_small"
    about = "transformer on the bytes of Python's standard library: real data"
    four_worker_steps = 400
    tokens, context = _BYTES, 128
    options: ClassVar[dict[str, Any]] = {"layers": 4, "heads": 4, "width": 128}
    rate, warm = 2e-3, 20
    target = 3.0


class GPTTiny(GPTSmall):
    """Two layers of width 64 on bytes, windows of 64, four a worker: a step of four workers takes some 50 ms of one core."""

    name = "gpt_tiny"
    about = "two-layer transformer on the bytes of Python's standard library: real data, long runs"
    batch, four_worker_steps, context = 4, 5000, 64
    options: ClassVar[dict[str, Any]] = {"layers": 2, "heads": 4, "width": 64}
    rate, warm = 3e-3, 100
    target = 3.0
