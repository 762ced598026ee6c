"""Backward passes of a sharded model, and the exchanges that run beside them on the CPU.

There torch waits for each reduce-scatter before the backward pass goes on. Here a thread of its own does the exchange of one
group of parameters while the next group's weights are gathered and its gradients computed, and parameters get their gradients
when the pass ends. On an accelerator torch's streams do that, and an exchange is done where torch asks for it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from grace.adapters.backward import at_end_of_backward
from grace.run.lane import Inline, Lane, ThreadLane

_AHEAD = 2  # groups whose gradients, unsharded, may wait for their exchange


class Late(Protocol):
    """Gradients that are there when the backward pass ends."""

    def settle(self) -> None:
        """Gives the parameters their gradients."""


class Passes:
    """Backward passes, one after the other. Its methods are called by the thread of the pass.

    An error in an exchange is raised when the pass ends, and the pass makes no further exchanges. Torch's own collectives in
    it go on until then, on all ranks alike, so that none waits for one that has left.

    Args:
        device: where gradients are.
        end: called at the end of a pass without an error, when all gradients are there.
        waiting: a context in which the pass waits for exchanges.
    """

    def __init__(
        self, device: torch.device, end: Callable[[], None], waiting: Callable[[], AbstractContextManager[None]]
    ):
        self._lane: Lane = ThreadLane("grace-exchange") if device.type == "cpu" else Inline()
        self.overlaps = self._lane.overlaps
        self._end, self._waiting = end, waiting
        self._room = threading.Semaphore(_AHEAD)
        self._late: list[Late] = []
        self._error: BaseException | None = None
        self._last: weakref.ref[Callable[[], None]] | None = None

    @property
    def failed(self) -> bool:
        """True if an exchange of this pass has failed."""
        return self._error is not None

    def begin(self) -> bool:
        """True if a pass begins here: there is none, or the last one was broken off by an error of torch's or the user's."""
        if self._last is not None and self._last() is not None:
            return False
        self._lane.drain()
        self._late, self._error = [], None

        def last() -> None:  # lives as long as the pass: torch holds it, and drops it, called or not
            self._last = None
            self._finish()

        self._last = weakref.ref(last) if at_end_of_backward(last) else None
        return True

    def submit(self, job: Callable[[], None], *, wait: bool = False) -> None:
        """Does ``job`` after all that was submitted before, at the latest when the pass ends. ``wait``: before this returns.

        Raises:
            What ``job``, or one before it, raises, where this waits for it.
        """

        def run() -> None:
            try:
                if self._error is None:
                    job()
            except BaseException as error:
                self.fail(error)
            finally:
                self._room.release()

        with self._waiting():
            self._room.acquire()
            self._lane.submit(run)
            if wait:
                self._lane.drain()
        if wait and self._error is not None:
            raise self._error

    def settle(self, late: Late | None) -> None:
        """A reduction has been submitted whole. ``late`` is settled when the pass ends; None: this one is there already."""
        if late is not None:
            self._late.append(late)
        if self._last is None:  # torch reduces outside of a backward pass: there is no end to wait for
            self._finish()

    def fail(self, error: BaseException) -> None:
        """Keeps the first error of this pass, for its end."""
        if self._error is None:
            self._error = error

    def _finish(self) -> None:
        with self._waiting():
            self._lane.drain()
        late, self._late = self._late, []
        error, self._error = self._error, None
        if error is not None:
            raise error
        for handle in late:
            handle.settle()
        self._end()

    def close(self) -> None:
        """Ends the thread once everything submitted is done."""
        self._lane.close()
