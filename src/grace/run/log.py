"""Logging of the costs and errors of an exchange, step by step, for TensorBoard, Weights & Biases, or a function."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

from grace.collectives import ring_bytes
from grace.errors import ConfigurationError, DivergenceWarning, out_of_range, stack_level
from grace.run.stats import Stats
from grace.run.watch import UNSURE, WHAT_TO_DO
from grace.run.worker import Worker

Sink: TypeAlias = Callable[[dict[str, float], int], Any]
PREFIX = "grace/"


class Log:
    """Tells a sink, every ``every`` steps, what the steps since the last time were like. For one rank or all: nothing is
    exchanged.

    Args:
        to: a ``SummaryWriter``, a run of Weights & Biases, a logger with ``log_metrics``, or a function of a dictionary and
            the step.
        worker, stats: of the exchange.
        every: steps from one line to the next.
        errors_every: steps from one measurement of compression errors to the next; 0: none.
        more: what else there is to tell.

    Raises:
        ConfigurationError: nothing that Grace can log to, or a knob out of range.
    """

    def __init__(
        self,
        to: Any,
        worker: Worker,
        stats: Stats,
        *,
        every: int = 1,
        errors_every: int = 0,
        more: Callable[[], dict[str, float]] = dict,
    ):
        if type(every) is not int or every < 1:
            raise out_of_range("log", "every", every, "a whole number >= 1")
        if type(errors_every) is not int or errors_every < 0:
            raise out_of_range("log", "errors_every", errors_every, "a whole number >= 0; 0 measures none")
        self._tell, self._more = find_sink(to), more
        self._worker, self._stats, self._every, self._errors_every = worker, stats, every, errors_every
        self._last = _totals(stats)
        self._errors: dict[str, float] = {}  # measured since the last line

    def measures(self, count: int) -> bool:
        """True if the errors of the ``count``-th step, from 1, are to be measured."""
        return self._errors_every > 0 and count % self._errors_every == 0

    def step(self, step: int) -> None:
        """Takes note that a step has ended: number ``step`` of the training, counted from 1."""
        if self.measures(self._stats.steps):
            self._errors.update(self._worker.distortions)
        if self._stats.steps % self._every == 0:
            values = self._read() | self._more()
            self._tell({PREFIX + key: value for key, value in values.items()}, step)

    def _read(self) -> dict[str, float]:
        """Averages over the steps since the last reading."""
        now = _totals(self._stats)
        since = {key: now[key] - self._last[key] for key in now}
        self._last = now
        steps, sent = max(1.0, since.pop("steps")), since["sent_bytes"]
        ring = ring_bytes(since.pop("dense_bytes"), self._stats.world)
        values = {key: total / steps for key, total in since.items()}
        values |= {"ratio": ring / sent if sent else 1.0, "memory_norm": self._worker.memory_norm()}
        values |= {f"error/{name}": error for name, error in self._errors.items()}
        self._errors.clear()
        return values


class Logs:
    """All logs of one exchange."""

    def __init__(self, worker: Worker, stats: Stats):
        self._worker, self._stats = worker, stats
        self._logs: list[Log] = []
        self._told = 0  # steps that the logs have been told of
        self._warned = False
        self.more: Callable[[], dict[str, float]] = dict  # what else there is to tell

    def add(self, to: Any, *, every: int = 1, errors_every: int = 0) -> None:
        """See :class:`Log`; from the coming step on."""
        self._logs.append(
            Log(to, self._worker, self._stats, every=every, errors_every=errors_every, more=lambda: self.more())
        )
        self._told = self._stats.steps
        self._look_ahead()

    def report(self, step: int | None = None) -> None:
        """Tells the logs of a step that has ended, if one has.

        Args:
            step: its number in training, from 1, where that is not the exchange's.
        """
        self._warn()
        if not self._logs or self._stats.steps == self._told:
            return
        self._told = self._stats.steps
        for log in self._logs:
            log.step(self._worker.step if step is None else step)
        self._look_ahead()

    def _warn(self) -> None:
        """Warns, on rank 0 and once, of a training that drifts apart."""
        worker = self._worker
        if worker.watch.diverging and not self._warned:
            self._warned = True
            if worker.rank == 0:
                text = f"at step {worker.step} {UNSURE if worker.unsure else WHAT_TO_DO}"
                warnings.warn(text, DivergenceWarning, stacklevel=stack_level())

    def _look_ahead(self) -> None:
        self._worker.measures = any(log.measures(self._stats.steps + 1) for log in self._logs)
        self._worker.distortions = {}


def find_sink(to: Any) -> Sink:
    """A function of values and step that passes them on to ``to``.

    Raises:
        ConfigurationError: it is nothing that Grace can log to.
    """
    if callable(getattr(to, "add_scalar", None)):  # TensorBoard
        return lambda values, step: [to.add_scalar(key, value, step) for key, value in values.items()]
    if callable(getattr(to, "log_metrics", None)):  # a logger of Lightning
        return lambda values, step: to.log_metrics(values, step=step)
    if callable(getattr(to, "log", None)) and callable(getattr(to, "define_metric", None)):  # Weights & Biases
        to.define_metric(PREFIX + "*", step_metric=PREFIX + "step")  # its own count of steps stays the user's
        return lambda values, step: to.log({**values, PREFIX + "step": step})
    if callable(to):
        return to  # type: ignore[no-any-return]
    raise ConfigurationError(
        f"log: {to!r} is nothing to log to; legal: a SummaryWriter, a run of Weights & Biases, a logger with log_metrics, or "
        "a function of a dictionary and the step"
    )


def _totals(stats: Stats) -> dict[str, float]:
    return {
        "steps": stats.steps, "sent_bytes": stats.traffic.sent, "dense_bytes": stats.dense_bytes,
        "codec_seconds": stats.codec_seconds, "exchange_seconds": stats.exchange_seconds,
        "exposed_seconds": stats.exposed_seconds, "nonfinite": stats.nonfinite,
    }  # fmt: skip
