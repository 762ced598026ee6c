"""The survey's row on Penn Treebank: the next word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from grace.errors import DataError
from grace_bench.tasks import metrics, models
from grace_bench.tasks.embedded.chunks import Array
from grace_bench.tasks.embedded.stdlib import stdlib_words
from grace_bench.tasks.files.ptb import read_ptb
from grace_bench.tasks.models.lstm import State
from grace_bench.tasks.suite import DataSet, SuiteTask

_RUN_EPOCHS = 25  # of the survey's run
_CONSTANT_EPOCHS = 7


class Carry:
    """The state that a stream of batches carries from one to the next: the model's, after the last one."""

    state: State | None = None


Batch = tuple[Tensor, Tensor, Carry]


class LSTM(SuiteTask):
    """The "medium" LSTM on Penn Treebank. The text is cut into as many streams as all workers' batches have rows; the
    state goes from step to step and is reset where the text begins again. Quality is the perplexity of the test text.

    Attributes:
        length: words of a sequence. words: of the vocabulary. rows: streams of the test text.
        test_words: how many words of the test text are used; 0: all.
    """

    name = "lstm_ptb"
    about = "LSTM on Penn Treebank"
    paper_row: ClassVar[str | None] = "LSTM / PTB"
    target = 100.17
    metric = "perplexity"
    better: Literal["higher", "lower"] = "lower"
    batch, epochs, clip = 20, 25, 5.0
    synthetic_samples = 929_589 // 35
    slots = 0
    length: ClassVar[int] = 35
    words: ClassVar[int] = 10_000
    network = models.LSTMLanguageModel
    rate: ClassVar[float] = 1.0
    rows: ClassVar[int] = 20
    test_words: ClassVar[int] = 0

    def read(self, root: Path | None) -> DataSet:
        self.text = stdlib_words(self.words) if root is None else read_ptb(root, self.words)
        test = len(self.text["test"])
        if test <= self.rows:
            raise DataError(
                f"the test text has {test} of the {self.words} known words; it needs at least {self.rows + 1}"
            )
        name = "standard library words" if root is None else "Penn Treebank"
        return DataSet.of(name, self.text, len(self.text["train"]) // self.length)

    def model(self) -> nn.Module:
        return self.network(self.words, **self.options)

    def steps_per_epoch(self, world: int) -> int:
        if self.source == "synthetic":
            return super().steps_per_epoch(world)
        return max(0, len(self.text["train"]) // (self.batch * world) - 1) // self.length

    def batches_of(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        # Where a text begins does not depend on the seed: the order is the text's own.
        streams = _streams(self.text["train"], self.batch * world)[rank * self.batch : (rank + 1) * self.batch]
        while True:
            carry = Carry()
            for k in range(self.steps_per_epoch(world)):
                x = streams[:, k * self.length : (k + 1) * self.length + 1]
                yield x[:, :-1], x[:, 1:], carry

    def synthetic_batch(self, random: np.random.RandomState) -> Batch:
        x = torch.from_numpy(random.randint(0, self.words, (self.batch, self.length + 1)))
        return x[:, :-1], x[:, 1:], Carry()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over the streams of the sum over the sequence, as the original has it."""
        x, y, carry = batch
        logits, carry.state = model(x, carry.state)
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten()) * self.length

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.rate)

    def lr(self, step: int) -> float:
        epoch = _RUN_EPOCHS * step // max(1, self.steps)
        power: float = 0.8 ** max(0, epoch + 1 - _CONSTANT_EPOCHS)
        return self.rate * power

    def measure(self, model: nn.Module) -> dict[str, float]:
        text = self.text["test"][: self.test_words or None]
        streams = _streams(text, self.rows)
        state, nats, count = None, 0.0, 0
        for start in range(0, streams.shape[1] - 1, self.length):
            x = streams[:, start : start + self.length + 1]
            logits, state = model(x[:, :-1], state)
            nats += functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), reduction="sum").item()
            count += x[:, 1:].numel()
        return {"perplexity": metrics.perplexity(nats, count)}


def _streams(text: Array, rows: int) -> Tensor:
    """``[rows, t]``: the text cut into ``rows`` pieces of one length."""
    length = len(text) // rows
    return torch.from_numpy(text[: rows * length].reshape(rows, length).astype(np.int64))


class LSTMSmall(LSTM):
    """2,000 words and a width of 200, no dropout."""

    name = "lstm_small"
    about = "LSTM on the words of Python's standard library: real data"
    four_worker_steps = 500
    words, test_words = 2_000, 40_000
    options: ClassVar[dict[str, Any]] = {"hidden": 200, "dropout": 0.0, "bound": 0.1}
    target = 20.0


class LSTMTiny(LSTM):
    """1,000 words, one layer of width 96, sequences of 20 words, eight a worker; no dropout."""

    name = "lstm_tiny"
    about = "one-layer LSTM on the words of Python's standard library: real data, long runs"
    paper_row = None  # a row has two sizes, and this is a third
    four_worker_steps = 5000
    batch, length = 8, 20
    words, test_words = 1_000, 20_000
    options: ClassVar[dict[str, Any]] = {"hidden": 96, "layers": 1, "dropout": 0.0, "bound": 0.1}
    target = 20.0
