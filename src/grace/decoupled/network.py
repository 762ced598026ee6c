"""gRPC between learners and syncer: one stream for each learner, both ways, of :mod:`grace.decoupled.packing`'s bytes."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from grace.errors import ConfigurationError

try:
    import grpc as grpc
    import grpc.aio
    import msgspec  # noqa: F401  # of packing
except ModuleNotFoundError as missing:  # pragma: no cover
    raise ConfigurationError(
        f"decoupled learners need {missing.name}, which is not installed: pip install 'grace-dl[decoupled]'"
    ) from missing

METHOD = "/grace.decoupled/learn"
OPTIONS = [
    ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 20_000),
]  # fmt: skip
_CLIENT = [("grpc.initial_reconnect_backoff_ms", 500), ("grpc.max_reconnect_backoff_ms", 5_000)]
_CLIENT += [("grpc.use_local_subchannel_pool", 1)]
_RETRY = 1.0  # seconds
_FULL = 1000  # messages that wait for a syncer which does not read


_Outbox: TypeAlias = "queue.Queue[bytes | None]"


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream that waits for its first message, or for its syncer. outbox: what is sent over it."""

    outbox: _Outbox


@dataclass(frozen=True, slots=True)
class Received:
    """A message."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """The stream has ended; another is opened in a second."""

    reason: str


class SyncerLink:
    """A learner's end. A thread moves bytes; :meth:`events` are for the training thread, which never waits.

    Args:
        address: ``host:port`` of the syncer.
        credentials: ``grpc.ChannelCredentials``, or None: in the clear.
    """

    def __init__(self, address: str, credentials: Any = None):
        options = [*OPTIONS, *_CLIENT]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        elif isinstance(credentials, grpc.ChannelCredentials):
            self._channel = grpc.secure_channel(address, credentials, options)
        else:
            raise ConfigurationError(
                f"decoupled: credentials={credentials!r:.80}; legal: grpc.ChannelCredentials, such as "
                "grpc.ssl_channel_credentials() gives, or None"
            )
        self._events: queue.SimpleQueue[tuple[int, Opened | Received | Closed]] = queue.SimpleQueue()
        self._outbox: _Outbox = queue.Queue()  # of the stream that the training thread knows
        self._numbers, self._current = itertools.count(1), 0
        self._ended = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="grace-syncer-link", daemon=True)
        self._thread.start()

    def events(self, timeout: float | None = None) -> Iterator[Opened | Received | Closed]:
        """The events since the last call. ``timeout``: seconds to wait for something; None: does not wait."""
        wait = timeout
        while True:
            try:
                number, event = self._events.get(block=wait is not None, timeout=wait)
            except queue.Empty:
                return
            wait = None
            if isinstance(event, Opened):
                self._current, self._outbox = number, event.outbox
            if number == self._current:
                yield event

    def send(self, data: bytes, droppable: bool = False) -> None:
        """Sends over the stream that :meth:`events` has opened last. ``droppable``: a later message says the same."""
        if not droppable or self._outbox.qsize() < _FULL:
            self._outbox.put(data)

    def reopen(self) -> None:
        """Ends the stream; another follows."""
        if (call := self._call) is not None:
            call.cancel()

    def close(self, patience: float = 5.0) -> None:
        """Ends the link and its thread, when what was sent has gone, or after ``patience`` seconds."""
        self._ended.set()
        self._outbox.put(None)
        self._thread.join(patience)
        self.reopen()
        self._thread.join(patience)  # what was cancelled takes a moment to end

    def _run(self) -> None:
        open_stream = self._channel.stream_stream(METHOD)
        while not self._ended.is_set():
            number = next(self._numbers)
            outbox: _Outbox = queue.Queue()
            reason = "the syncer has ended the connection"
            self._events.put((number, Opened(outbox)))
            try:
                self._call = open_stream(iter(outbox.get, None), wait_for_ready=True)
                if self._ended.is_set():  # close() may have cancelled the call before this one
                    self._call.cancel()
                for data in self._call:
                    self._events.put((number, Received(data)))
            except grpc.RpcError as error:
                reason = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
            outbox.put(None)  # ends the thread that sends
            self._events.put((number, Closed(reason)))
            self._ended.wait(_RETRY)
        self._channel.close()
