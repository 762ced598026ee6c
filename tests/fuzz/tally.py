"""Tally of a fuzzing run, and the limits of what a payload may cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import thread_time

_TIMES, _SECONDS = 10.0, 1.0  # beyond so many times what a valid one takes, plus this, a payload costs too much


@dataclass(slots=True)
class Tally:
    """Counts of one target: payloads tried, payloads refused, processor seconds, and the dearest call beside a valid one's."""

    payloads: int = 0
    refused: int = 0
    seconds: float = 0.0
    usual: float = 0.0  # processor seconds of the dearest call with valid payloads

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Times one call.

        Raises:
            AssertionError: it took longer than the size of what it was given justifies.
        """
        start = thread_time()
        try:
            yield
        finally:  # a refusal may not take long either
            took = thread_time() - start
            self.seconds += took
            limit = _TIMES * self.usual + _SECONDS
            assert took <= limit, f"{took:.2f} s of work for payloads whose valid kind takes {self.usual:.4f} s"
