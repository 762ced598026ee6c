"""Where exchanges run: on one thread, in the order of submission, or at once where they are asked for."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

import torch

_Jobs: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


class Lane(Protocol):
    """Does jobs in the order of submission. ``overlaps``: whether ``submit`` returns before the job is done."""

    overlaps: ClassVar[bool]

    def submit(self, job: Callable[[], None]) -> None:
        """Does ``job`` after all that was submitted before."""

    def drain(self) -> None:
        """Returns once everything submitted is done."""

    def close(self) -> None:
        """Ends the lane once everything submitted is done."""


def lane_for(device: torch.device) -> Lane:
    """The lane for gradients on this device: a CUDA device has a stream of its own, where jobs are only enqueued."""
    return Inline() if device.type == "cuda" else ThreadLane("grace-exchange")


class Inline:
    """Does each job at once, in the thread that submits it."""

    overlaps: ClassVar[bool] = False

    def submit(self, job: Callable[[], None]) -> None:
        job()

    def drain(self) -> None: ...

    def close(self) -> None: ...


class ThreadLane:
    """A first-in-first-out thread. Collectives started from it keep their order on all ranks, whichever thread asks.

    A job reports its own errors: one that escapes ends the lane's thread and is printed by ``threading.excepthook``. The
    thread ends when the lane is closed or dropped.
    """

    overlaps: ClassVar[bool] = True

    def __init__(self, name: str):
        self._jobs: _Jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, job: Callable[[], None]) -> None:
        """Queues ``job`` after all that was submitted before."""
        self._jobs.put(job)

    def drain(self) -> None:
        """Returns once everything submitted is done."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait()

    def close(self, seconds: float = 10.0) -> None:
        """Ends the thread once everything submitted is done."""
        self._jobs.put(None)
        self._thread.join(seconds)


def _work(jobs: _Jobs) -> None:
    """Does jobs until None comes. It knows only the queue: a thread that held its lane would keep it alive forever."""
    while (job := jobs.get()) is not None:
        job()
        del job  # so that an idle lane keeps no gradients alive
