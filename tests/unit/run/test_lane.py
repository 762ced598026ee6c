"""Lanes, in which exchanges run: all keep the order of submission; a thread overlaps, the inline lane does not; a stream of a
lane's own waits for others, and is waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import torch

from grace.errors import GraceError
from grace.flags.capturing import capturing
from grace.run.lane import Inline, Lane, StreamLane, ThreadLane, lane_for
from grace.run.streams import CudaStreams, StreamOrder
from tests.patience import PATIENCE


class Stream:
    """Work that was submitted and is not done."""

    def __init__(self, name: str):
        self.name, self.queue, self.done = name, [], 0


class Reluctant:
    """Stands in for the streams of a device. Nothing is done before someone must have it, so that whatever nobody waits for
    comes last; but the streams that are ``hasty`` do everything as soon as they may.

    log: what was asked of streams and events.
    """

    def __init__(self, captures: bool = False, hasty: str = ""):
        self.captures, self.hasty, self.log, self.streams = captures, hasty, [], []
        self.main = self.make("main")
        self._local = threading.local()

    def adopt(self) -> None:
        self._local.adopted = True

    def here(self) -> AbstractContextManager[None]:
        return nullcontext()

    def make(self, name: str = "own") -> Stream:
        self.streams.append(Stream(name))
        return self.streams[-1]

    def current(self) -> Stream:
        return getattr(self._local, "stream", self.main)

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            assert getattr(self._local, "adopted", False), "the thread's device was not set before a stream was used"
        before, self._local.stream = self.current(), stream
        yield
        self._local.stream = before

    def record(self, stream: Stream) -> tuple[Stream, int]:
        self.log.append(f"record {stream.name}")
        return stream, len(stream.queue)

    def wait(self, stream: Stream, event: tuple[Stream, int]) -> None:
        self.log.append(f"{stream.name} waits for {event[0].name}")
        stream.queue.append(lambda: self.reach(*event))

    def capturing(self) -> bool:
        return self.captures

    def launch(self, work: Callable[[], None]) -> None:
        self.log.append(f"work on {self.current().name}")
        self.current().queue.append(work)
        if self.current().name == self.hasty:
            self.synchronize(self.current())

    def reach(self, stream: Stream, count: int) -> None:
        while stream.done < count:
            stream.done += 1
            stream.queue[stream.done - 1]()

    def synchronize(self, stream: Stream) -> None:
        self.reach(stream, len(stream.queue))


def go(lane: Lane, streams: Reluctant) -> list[float]:
    """Two steps, each of two gradients: the backward pass makes one, the lane doubles it, the optimizer takes it."""
    gradient, taken = [0.0, 0.0], []
    for step in range(2):
        for place in range(2):
            streams.launch(lambda place=place, step=step: gradient.__setitem__(place, 10.0 * step + place + 1))

            def double(place: int = place) -> None:
                streams.launch(lambda: gradient.__setitem__(place, 2 * gradient[place]))

            lane.submit(double)
        lane.drain()
        streams.launch(lambda: taken.extend(gradient))
    streams.synchronize(streams.main)
    return taken


@pytest.mark.parametrize("hasty", ["", "own"])
def test_streams_wait_for_each_other_and_the_host_for_neither(hasty: str):
    streams = Reluctant(hasty=hasty)
    lane = StreamLane("lane-of-a-test", streams)
    assert go(lane, streams) == [2, 4, 22, 24]
    lane.close()
    submitted = [line for line in streams.log if line == "record main"]
    assert len(submitted) == 4
    assert streams.log.count("own waits for main") == 4
    assert streams.log.count("work on own") == 4
    assert streams.log.count("main waits for own") == 3, "twice to drain, and to close"
    assert lane.overlaps


class DoesNotWait(StreamLane):
    """Begins before the gradient is there."""

    def submit(self, job):
        def run():
            with self._streams.use(self._own):
                job()

        self._thread.submit(run)


class IsNotWaitedFor(StreamLane):
    """The optimizer does not wait."""

    def drain(self):
        self._thread.drain()


@pytest.mark.parametrize(("mutant", "hasty"), [(DoesNotWait, "own"), (IsNotWaitedFor, "")])
def test_a_stream_that_does_not_wait_is_noticed(mutant: type[StreamLane], hasty: str):
    streams = Reluctant(hasty=hasty)
    lane = mutant("lane-of-a-test", streams)
    assert go(lane, streams) != [2, 4, 22, 24]
    lane.close()


def test_jobs_are_done_at_once_while_a_graph_is_captured():
    streams = Reluctant(captures=True)
    lane = StreamLane("lane-of-a-test", streams)
    threads: list[threading.Thread] = []
    lane.submit(lambda: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]
    assert go(lane, streams) == [2, 4, 22, 24]
    lane.close()


def test_whoever_uses_a_session_from_another_stream_waits_for_the_one_before():
    streams = Reluctant()
    order, other = StreamOrder(streams), streams.make("other")
    for _ in range(2):
        with order.turn():
            assert streams.log == []
    with streams.use(other), order.turn():
        assert streams.log == ["record main", "other waits for main"]
    with order.turn():
        pass
    assert streams.log[2:] == ["record other", "main waits for other"]


class SecondDevice:
    """Stands in for torch.cuda where the first of two devices is the current one, and work is captured on the second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.current = 0
        monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
        monkeypatch.setattr("torch.cuda.device", self.device)
        monkeypatch.setattr("torch.cuda.current_stream", lambda device: f"stream of {device}")
        monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: self.current == 1)

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before


def test_the_stream_of_the_tensors_is_asked_whether_it_is_captured(monkeypatch: pytest.MonkeyPatch):
    devices, streams = SecondDevice(monkeypatch), CudaStreams(torch.device("cuda", 1))
    assert not capturing()
    assert streams.capturing()
    with StreamOrder(streams).turn():
        assert capturing()
    assert devices.current == 0
    assert not CudaStreams(torch.device("cuda", 0)).capturing()


def test_marks_are_events_with_a_time_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch):
    class Event:
        """Happens when it is waited for."""

        def __init__(self, enable_timing: bool):
            self.timed, self.stream, self.happened = enable_timing, None, False

        def record(self, stream: str) -> None:
            self.stream = stream

        def query(self) -> bool:
            return self.happened

        def synchronize(self) -> None:
            self.happened = True

        def elapsed_time(self, other: Event) -> float:
            assert self.timed
            assert other.timed
            return 2.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    streams = CudaStreams(torch.device("cuda", 0))
    first, last = streams.mark("own"), streams.mark("own")
    assert first.stream == "own"
    assert streams.between(first, last) is None
    assert not last.happened
    streams.wait_here(last)
    assert streams.between(first, last) == 2_500_000
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: calls.append(cycles))
    calls: list[int] = []
    streams.hold(3_000_000)
    assert calls == [6_000_000], "2 GHz, or less"


@pytest.mark.parametrize(
    "make", [Inline, lambda: ThreadLane("lane-of-a-test"), lambda: StreamLane("lane-of-a-test", Reluctant())]
)
def test_jobs_are_done_in_order(make):
    lane: Lane = make()
    done: list[int] = []
    for number in range(20):
        lane.submit(lambda number=number: done.append(number))
    lane.drain()
    assert done == list(range(20))
    lane.submit(lambda: done.append(20))
    lane.close()
    assert done[-1] == 20


def test_what_a_lane_says_of_overlapping_is_true():
    threads: list[threading.Thread] = []
    for lane in (Inline(), ThreadLane("lane-of-a-test"), StreamLane("lane-of-a-test", Reluctant())):
        lane.submit(lambda: threads.append(threading.current_thread()))
        lane.drain()
        assert lane.overlaps == (threads[-1] is not threading.current_thread())
        lane.close()


def test_a_lane_for_each_device():
    if torch.cuda.is_available():
        beside = lane_for(torch.device("cuda", 0))
        assert isinstance(beside, StreamLane)
        beside.close()
    lane = lane_for(torch.device("cpu"))
    assert isinstance(lane, ThreadLane)
    lane.close()


@pytest.mark.parametrize("make", [ThreadLane, lambda name: StreamLane(name, Reluctant())], ids=["thread", "stream"])
def test_a_job_that_raises_is_told_to_whoever_waits_for_it(make):
    lane: Lane = make("lane-of-a-test")
    done: list[int] = []

    def fails() -> None:
        done.append(1)
        raise ZeroDivisionError("of a job")

    lane.submit(fails)
    in_time = returns(lane.drain)
    assert isinstance(in_time, ZeroDivisionError)
    for again in (lane.drain, lambda: lane.submit(lambda: done.append(2))):
        assert returns(again) is in_time
    assert done == [1]
    assert returns(lane.close) is None


@pytest.mark.parametrize("make", [ThreadLane, lambda name: StreamLane(name, Reluctant())], ids=["thread", "stream"])
def test_a_lane_that_is_closed_has_nothing_to_wait_for(make):
    lane: Lane = make("lane-of-a-test")
    lane.close()
    lane.close()
    assert returns(lane.drain) is None
    with pytest.raises(GraceError, match="this lane is closed"):
        lane.submit(lambda: None)


def returns(call: Callable[[], object]) -> object:
    """The result or the error of a call, which must end."""
    out: list[object] = []

    def run() -> None:
        try:
            out.append(call())
        except BaseException as error:
            out.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits forever"
    return out[0]
