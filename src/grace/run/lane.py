"""Lanes, in which exchanges run: on one thread, in the order of submission, on an accelerator with its own stream; or at once
where they are asked for.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

import torch

from grace.errors import GraceError
from grace.run.streams import CudaStreams, Streams

_Jobs: TypeAlias = "queue.SimpleQueue[Callable[[], None] | threading.Event | None]"


class Lane(Protocol):
    """Does jobs in the order of submission. ``overlaps``: whether ``submit`` returns before the job is done."""

    overlaps: ClassVar[bool]

    def submit(self, job: Callable[[], None]) -> None:
        """Does ``job`` after all that was submitted before."""

    def drain(self) -> None:
        """Returns once everything submitted is done, or will be before what the current stream is given from now on.

        Raises:
            The error that has escaped from a job.
        """

    def close(self) -> None:
        """Ends the lane once everything submitted is done."""


def lane_for(device: torch.device) -> Lane:
    """The lane for gradients on this device."""
    name = "grace-exchange"
    return StreamLane(name, CudaStreams(device)) if device.type == "cuda" else ThreadLane(name)


class Inline:
    """Does each job at once, in the thread that submits it."""

    overlaps: ClassVar[bool] = False

    def submit(self, job: Callable[[], None]) -> None:
        job()

    def drain(self) -> None: ...

    def close(self) -> None: ...


class ThreadLane:
    """A first-in-first-out thread. Collectives started from it keep their order on all ranks, whichever thread asks.

    A job reports its own errors. After one that escapes no other job is done, since collectives would no longer come in the
    order of all ranks; :meth:`submit` and :meth:`drain` raise it from then on. The thread ends when the lane is closed or
    dropped.
    """

    overlaps: ClassVar[bool] = True

    def __init__(self, name: str):
        self._jobs: _Jobs = queue.SimpleQueue()
        self._closed = False
        self._escaped: list[BaseException] = []
        self._thread = threading.Thread(target=_work, args=(self._jobs, self._escaped), name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, job: Callable[[], None]) -> None:
        """Queues ``job`` after all that was submitted before.

        Raises:
            GraceError: the lane is closed. The error that has escaped from a job.
        """
        self._raise_escaped()
        if self._closed:
            raise GraceError("this lane is closed: nothing more is exchanged beside training")
        self._jobs.put(job)

    def drain(self) -> None:
        """Returns once everything submitted is done; at once, after :meth:`close`.

        Raises:
            The error that has escaped from a job.
        """
        if not self._closed:
            done = threading.Event()
            self._jobs.put(done)
            done.wait()
        self._raise_escaped()

    def close(self, seconds: float = 10.0) -> None:
        """Ends the thread once everything submitted is done."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join(seconds)

    def _raise_escaped(self) -> None:
        if self._escaped:
            raise self._escaped[0]


class StreamLane:
    """A :class:`ThreadLane` whose jobs submit to a stream of their own, which begins each job when what had been submitted
    before it was asked for is done. So neither the thread nor the stream of the backward pass waits for codecs and networks, a
    codec that asks the host or a network that blocks it (gloo) included.

    Whatever a job frees, or others free that it has used, may be given away while its stream still reads it, if another stream
    has allocated it: a job's tensors live until :meth:`drain`, or until a future has been waited for that was set in the job.
    While a graph is captured jobs are done at once: a thread cannot be captured.
    """

    overlaps: ClassVar[bool] = True

    def __init__(self, name: str, streams: Streams):
        self._streams, self._own = streams, streams.make()
        self._thread = ThreadLane(name)
        # Leaving a stream makes the one before current again: in a thread whose device was never set that is a stream of the
        # first GPU, on which each process of the machine would open a context, of half a gigabyte.
        self._thread.submit(streams.adopt)

    def submit(self, job: Callable[[], None]) -> None:
        """Queues ``job`` after all that was submitted before."""
        streams, own = self._streams, self._own
        ready = streams.record(streams.current())

        def run() -> None:
            streams.wait(own, ready)
            with streams.use(own):
                job()

        if streams.capturing():
            self._thread.drain()
            run()
        else:
            self._thread.submit(run)

    def drain(self) -> None:
        """Returns once everything submitted has been given to the stream, which the current stream then waits for."""
        self._thread.drain()
        self._streams.wait(self._streams.current(), self._streams.record(self._own))

    def close(self) -> None:
        """Ends the thread once everything submitted has been given to the stream, which the current stream then waits for."""
        self._thread.close()
        self._streams.wait(self._streams.current(), self._streams.record(self._own))


def _work(jobs: _Jobs, escaped: list[BaseException]) -> None:
    """Does jobs until None comes, or an error escapes from one; an event is set when all before it are done. It knows only
    these two: a thread that held its lane would keep it alive forever.
    """
    while (job := jobs.get()) is not None:
        if isinstance(job, threading.Event):
            job.set()
        elif not escaped:
            try:
                job()
            except BaseException as error:
                escaped.append(error)
        del job  # so that an idle lane keeps no gradients alive
