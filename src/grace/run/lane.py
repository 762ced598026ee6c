"""One thread that does one thing after the other, in the order in which they were asked for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Lane:
    """A first-in-first-out thread. Collectives started from it keep their order on all ranks, whatever thread asks.

    A job reports its own errors: one that escapes ends the lane's thread and is printed by ``threading.excepthook``.
    """

    def __init__(self, name: str):
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Does ``job`` after all that was submitted before."""
        self._jobs.put(job)

    def close(self, seconds: float = 10.0) -> None:
        """Ends the thread after what was submitted."""
        self._jobs.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # so that an idle lane keeps no gradients alive
