"""Streams of an accelerator, as far as exchanges need them: one of their own, which waits for others and is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from grace.flags.capturing import capturing

_CYCLES = 2.0  # of a GPU in a nanosecond, or fewer


class Streams(Protocol):
    """The streams of one device. Work is submitted to the current one; nothing here makes the host wait."""

    def adopt(self) -> None:
        """Makes the device the current one of this thread, which begins with the first device whatever its process chose."""

    def here(self) -> AbstractContextManager[Any]:
        """A context in which the device is the current one of this thread."""

    def make(self) -> Any:
        """A new stream."""

    def current(self) -> Any:
        """The stream that this thread submits to."""

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which this thread submits to that stream."""

    def record(self, stream: Any) -> Any:
        """An event that has happened when all that was submitted to the stream so far is done."""

    def wait(self, stream: Any, event: Any) -> None:
        """Lets work that is submitted to the stream from now on begin when the event has happened."""

    def mark(self, stream: Any) -> Any:
        """As :meth:`record`, of which :meth:`between` knows when it happened."""

    def between(self, first: Any, last: Any) -> int | None:
        """Nanoseconds of the device from one mark to another; None: the later one has not happened. The host does not wait."""

    def wait_here(self, mark: Any) -> None:
        """Makes the host wait until a mark has happened, and for nothing later."""

    def hold(self, nanoseconds: int) -> None:
        """Keeps the current stream busy for about so long: what is submitted meanwhile is done without a break afterwards."""

    def capturing(self) -> bool:
        """True if what this thread submits is captured into a graph, not done."""


class CudaStreams:
    """The streams of a CUDA device. A new one has a high priority: others wait for what is exchanged there."""

    def __init__(self, device: torch.device):
        self._device = device

    def adopt(self) -> None:
        torch.cuda.set_device(self._device)

    def here(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self._device)

    def make(self) -> Any:
        return torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]

    def current(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def record(self, stream: Any) -> Any:
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def mark(self, stream: Any) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def between(self, first: Any, last: Any) -> int | None:
        return round(1e6 * first.elapsed_time(last)) if last.query() else None

    def wait_here(self, mark: Any) -> None:
        mark.synchronize()

    def hold(self, nanoseconds: int) -> None:
        torch.cuda._sleep(int(_CYCLES * nanoseconds))  # type: ignore[no-untyped-call]

    def capturing(self) -> bool:
        with self.here():  # what is asked is the current stream of the current device
            return capturing()


class StreamOrder:
    """Keeps what belongs to one session in order, whichever streams it is used from: each waits for the one before."""

    def __init__(self, streams: Streams):
        self._streams = streams
        self._last: Any = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A context in which the current stream may use it, and its device is the current one."""
        with self._streams.here():
            now = self._streams.current()
            if self._last is not None and now != self._last:
                self._streams.wait(now, self._streams.record(self._last))
            self._last = now
            yield
