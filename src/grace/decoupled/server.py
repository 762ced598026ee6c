"""The process of a syncer: ``grace syncer``, or :func:`serve`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

from grace.decoupled.checkpoint import load_checkpoint, write_checkpoint
from grace.decoupled.messages import FromSyncer, Refusal
from grace.decoupled.network import METHOD, OPTIONS, grpc
from grace.decoupled.packing import pack, read_learner
from grace.decoupled.settings import SyncerSettings
from grace.decoupled.syncer import Syncer
from grace.errors import PayloadError, TransportError, out_of_range

_log = logging.getLogger("grace.decoupled")
_PINGS = [("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000), ("grpc.so_reuseport", 0)]


class SyncerServer:
    """Carries a syncer's messages, rings its alarm, and keeps its checkpoint.

    Args:
        syncer: whose clock is :func:`time.monotonic`.
        checkpoint: a file. save_every: seconds.
        credentials: ``grpc.ServerCredentials``, or None: in the clear.
    """

    def __init__(self, syncer: Syncer, checkpoint: Path | None, save_every: float, credentials: Any = None):
        self.syncer, self._checkpoint, self._save_every, self._credentials = syncer, checkpoint, save_every, credentials
        self._outboxes: dict[int, asyncio.Queue[FromSyncer | None]] = {}
        self._numbers = itertools.count(1)
        self._alarm: asyncio.TimerHandle | None = None

    async def run(self, address: str, started: Callable[[str], None]) -> None:
        """Serves until the process is told to stop.

        Raises:
            TransportError: the address cannot be had.
        """
        server = grpc.aio.server(options=[*OPTIONS, *_PINGS])
        server.add_generic_rpc_handlers((_Handler(self._serve),))
        try:
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise TransportError(f"the syncer cannot listen at {address}: {error}") from error
        await server.start()
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
                loop.add_signal_handler(number, stop.set)
        started(f"{address.rpartition(':')[0]}:{port}")
        await self._save_often(stop)
        await server.stop(1.0)

    # ---- one learner ------------------------------------------------------------------------------------------------
    async def _serve(self, requests: AsyncIterator[bytes], context: Any) -> None:
        link = next(self._numbers)
        outbox = self._outboxes[link] = asyncio.Queue()
        reader = asyncio.create_task(self._read(link, requests, f"{context.peer()}"))
        try:
            while (message := await outbox.get()) is not None:
                await context.write(pack(message))
                if isinstance(message, Refusal):
                    _log.warning("refused %s: %s", context.peer(), message.reason)
                    return
        finally:
            reader.cancel()
            del self._outboxes[link]
            self._dispatch(self.syncer.left(link, time.monotonic()))

    async def _read(self, link: int, requests: AsyncIterator[bytes], sender: str) -> None:
        try:
            async for data in requests:
                try:
                    message = read_learner(data, f"the learner at {sender}")
                except PayloadError as error:
                    self.syncer.stats.refused += 1
                    self._outboxes[link].put_nowait(Refusal(str(error), again=True))
                    return
                self._dispatch(self.syncer.receive(link, message, time.monotonic()))
        except grpc.aio.AioRpcError as error:
            _log.info("%s: %s", sender, error.details())
        finally:
            if (outbox := self._outboxes.get(link)) is not None:
                outbox.put_nowait(None)

    def _dispatch(self, sent: list[tuple[int, FromSyncer]]) -> None:
        for link, message in sent:
            if (outbox := self._outboxes.get(link)) is not None:
                outbox.put_nowait(message)
        now = time.monotonic()
        if self._alarm is not None:
            self._alarm.cancel()
        due = self.syncer.due(now)
        loop = asyncio.get_running_loop()
        self._alarm = None if due is None else loop.call_later(due - now, self._ring)

    def _ring(self) -> None:
        self._dispatch(self.syncer.tick(time.monotonic()))

    # ---- checkpoints ------------------------------------------------------------------------------------------------
    async def _save_often(self, stop: asyncio.Event) -> None:
        """Saves one state after another, the last when it is told to stop: never two at a time, which share a file."""
        stopped = False
        while not stopped:
            with contextlib.suppress(asyncio.TimeoutError):  # Python 3.10 has two of this name
                await asyncio.wait_for(stop.wait(), self._save_every)
            stopped = stop.is_set()
            await self._save()

    async def _save(self) -> None:
        if self._checkpoint is None or self.syncer.plan is None:
            return
        state = self.syncer.state_dict()
        try:
            await asyncio.to_thread(write_checkpoint, state, self._checkpoint)
        except (OSError, RuntimeError) as error:
            _log.error(
                "the checkpoint %s was not written, and learners keep what it lacks: %s", self._checkpoint, error
            )
            return
        self.syncer.saved()


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """The one method of the service."""

    def __init__(self, serve: Any):
        self._handler = grpc.stream_stream_rpc_method_handler(serve)

    def service(self, handler_call_details: Any) -> Any:
        return self._handler if handler_call_details.method == METHOD else None


def serve(
    address: str = "[::]:4711",
    *,
    learners: int,
    quorum: int = 1,
    lr: float = 0.7,
    momentum: float = 0.9,
    average: Literal["radial", "plain"] = "radial",
    margin: float = 0.5,
    forget_after: float = 3600.0,
    checkpoint: str | Path | None = None,
    save_every: float = 60.0,
    credentials: Any = None,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Runs a syncer in this process, until a SIGINT or SIGTERM. It needs no model: the first learner brings everything.

    Args:
        address: where it listens, ``host:port``; port 0: any.
        learners: M, how many may be there at once, >= 1.
        quorum: K, how many must have made H steps before a fragment is merged, 1 to M.
        lr: of the outer optimizer, > 0.
        momentum: Nesterov's, of the outer optimizer, 0 <= momentum < 1.
        average: "radial", norms and directions apart and embeddings plainly, or "plain".
        margin: share of the slack that is waited for more learners than the quorum, 0 <= margin < 1.
        forget_after: seconds after which a learner that is away is written off, > 0.
        checkpoint: a file that is read if it is there, and written every so many seconds and at the end; None: none.
        save_every: seconds, > 0.
        credentials: ``grpc.ServerCredentials``; None: in the clear, for networks in which nobody else listens.
        started: is told the address when it listens.

    Raises:
        ConfigurationError: a value out of range.
        StateError: a file that is no checkpoint.
        TransportError: the address is taken.
    """
    settings = SyncerSettings(
        learners, quorum, lr=lr, momentum=momentum, average=average, margin=margin, forget_after=forget_after
    )
    if not save_every > 0:
        raise out_of_range("syncer", "save_every", save_every, "seconds, > 0")
    path = None if checkpoint is None else Path(checkpoint)
    syncer = Syncer(settings, secrets.token_hex(8), keeps=path is not None)
    if path is not None and path.exists():
        syncer.load_state_dict(load_checkpoint(path), time.monotonic())
        _log.info("goes on from %s, after %d merges", path, syncer.stats.merges)
    asyncio.run(SyncerServer(syncer, path, save_every, credentials).run(address, started))
