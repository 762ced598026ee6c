"""The learner's end of a stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("grpc")

from grace.decoupled import network


class Call:
    """A stream to a syncer that is not there."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    def __iter__(self) -> Iterator[bytes]:
        self.cancelled.wait(2.0)
        return iter(())


def test_a_link_that_is_closed_while_it_opens_a_stream_ends_that_stream(monkeypatch: pytest.MonkeyPatch):
    links: list[network.SyncerLink] = []
    made, call = threading.Event(), Call()

    class Channel:
        def stream_stream(self, method: str) -> Any:
            return self.open

        def open(self, requests: Any, wait_for_ready: bool) -> Call:
            made.wait()
            closing = threading.Thread(target=links[0].close, args=(0.0,))
            closing.start()
            closing.join()
            return call

        def close(self) -> None: ...

    monkeypatch.setattr(network.grpc, "insecure_channel", lambda *_: Channel())
    links.append(network.SyncerLink("syncer:1"))
    made.set()
    assert call.cancelled.wait(1.0)
    links[0]._thread.join(1.0)
    assert not links[0]._thread.is_alive()
