"""The messages between ranks of an MPI job that are not collectives: who is there, who says what, and who has left.

MPI has no time-out, and a rank that left on an exception would leave the others waiting forever. So nothing here blocks:
requests are polled with a deadline, and a rank that leaves says so, and how far it came.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

from grace.errors import AbsentError, TransportError

_LEFT, _TOLD = 1, 2  # tags on a communicator of our own
_PRESENT = 32101  # on the user's, and only once a deadline has passed; every MPI allows tags up to 32767
_ROLL_SECONDS = 2.0  # how long ranks that are there have to say so
_TEXT_BYTES = 1000  # of an error, for the others
_YIELDS, _STEP_SECONDS, _LONGEST_SECONDS = 50, 20e-6, 1e-3
_WORK_SECONDS = 40e-6
# Some MPIs take calls from only one thread at a time. Again by the thread that holds it: whatever allocates may collect
# garbage, and a transport that is dropped leaves.
_turn = threading.RLock()


class Pace:
    """Pause between two polls. A poll that took processor time has moved bytes, and the next one follows at once.
    After polls that did nothing, pauses get longer and longer, so that ranks that train have the cores.
    """

    def __init__(self) -> None:
        self._idle, self._cpu = 0, time.thread_time()

    def pause(self) -> None:
        """Waits between two polls."""
        self._idle = 0 if time.thread_time() - self._cpu > _WORK_SECONDS else self._idle + 1
        time.sleep(min(_LONGEST_SECONDS, _STEP_SECONDS * max(0, self._idle - _YIELDS)))  # 0 gives the core away
        self._cpu = time.thread_time()


class Line:
    """Connects the ranks of ``base`` over a duplicate of it, which is begun here and complete after :meth:`open`.

    ``begun`` and ``ended`` count what all ranks do alike: if a rank leaves after it has ended as many as this one has begun,
    it has done its part in all of them.
    """

    # a duplicate that this rank has not opened belongs to its next line: MPI matches them by their order
    _unfinished: ClassVar[defaultdict[int, list[tuple[Any, Any]]]] = defaultdict(list)
    _abandoned: ClassVar[list[Any]] = []  # MPI may still write to these buffers

    def __init__(self, mpi: Any, base: Any):
        self.mpi, self._base, self.rank, self.world = mpi, base, int(base.rank), int(base.size)
        self._key = int(base.py2f())
        with _turn:
            self.comm, self._making = (self._unfinished[self._key] or [base.Idup()]).pop(0)
        self.begun = self.ended = 0
        self.closed = False
        self._left: dict[int, tuple[int, str]] = {}
        self._sent: list[Any] = []
        self._round = self._attempt = 0
        self._texts: defaultdict[int, dict[int, tuple[int, str]]] = defaultdict(dict)
        self._read: defaultdict[int, dict[int, int]] = defaultdict(dict)

    # ---- requests ---------------------------------------------------------------------------------------------------
    def start(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Starts a call of MPI and returns its request. No other thread is in MPI meanwhile."""
        with _turn:
            return call(*arguments)

    def wait(self, request: Any, what: str, seconds: float) -> None:
        """Waits until the request is complete.

        Raises:
            TransportError: another rank has left before doing its part, or the time has passed.
        """
        if not self._poll(request.Test, what, time.monotonic() + seconds):
            raise TransportError(
                f"rank {self.rank} of {self.world}: {what} failed: no answer within {seconds:.0f} s. A rank is stuck, is "
                "slower than that, or does not ask for this collective"
            )

    def abandon(self, *kept: Any) -> None:
        """Keeps alive what MPI may still use of a request that nobody waits for anymore."""
        self._abandoned.append(kept)

    def _poll(self, done: Callable[[], bool], what: str, deadline: float) -> bool:
        """True if ``done()`` became true by the deadline."""
        pace = Pace()
        while True:
            with _turn:
                if self.closed:
                    raise TransportError(f"rank {self.rank} has left the group, and waits no longer for {what}")
                if done():
                    return True
                self._listen()
            for rank, (ended, text) in self._left.items():
                if ended < self.begun:
                    raise TransportError(
                        f"rank {self.rank} of {self.world}: {what} failed: rank {rank} has left ({text})"
                    )
            if time.monotonic() > deadline:
                return False
            pace.pause()

    def _receive(self, comm: Any, tag: int) -> list[tuple[int, Any]]:
        """Receives what has come with this tag, and from whom."""
        status, came = self.mpi.Status(), []
        while comm.Iprobe(tag=tag, status=status):
            source = status.Get_source()
            came.append((source, comm.recv(source=source, tag=tag)))
        return came

    def _send(self, comm: Any, what: Any, rank: int, tag: int) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(comm.isend(what, rank, tag))

    def _send_all(self, comm: Any, what: Any, tag: int) -> None:
        for rank in range(self.world):
            if rank != self.rank:
                self._send(comm, what, rank, tag)

    # ---- who is there -----------------------------------------------------------------------------------------------
    def open(self, seconds: float) -> None:
        """Completes the duplicate.

        Raises:
            AbsentError: some ranks did not begin theirs within ``seconds``.
        """
        if self._making is None:
            return
        present = {self.rank}

        def is_complete() -> bool:
            for rank, asks in self._receive(self._base, _PRESENT):
                present.add(rank)
                if asks:
                    self._send(self._base, False, rank, _PRESENT)
            return bool(self._making.Test())

        complete = self._poll(is_complete, "the start", time.monotonic() + seconds)
        if not complete:
            with _turn:
                self._send_all(self._base, True, _PRESENT)
            complete = self._poll(is_complete, "the start", time.monotonic() + _ROLL_SECONDS)
        if not complete:
            absent = [rank for rank in range(self.world) if rank not in present]
            raise AbsentError(absent, f"ranks {absent} did not come within {seconds:.0f} s of rank {self.rank}")
        self._making = None

    def all_gather_text(self, text: str, seconds: float) -> list[str]:
        """Everyone's text, in the order of the ranks, once all ranks have read it.

        A rank that gives up and returns tells its text anew, so that a late rank does not take the old one for an answer.

        Raises:
            AbsentError: ranks that did not come within ``seconds``.
            TransportError: a rank has left.
        """
        deadline = time.monotonic() + seconds
        self.open(seconds)
        self._attempt += 1
        texts, read = self._texts[self._round], self._read[self._round]
        texts[self.rank] = (self._attempt, text)
        with _turn:
            self._send_all(self.comm, (self._round, self._attempt, text), _TOLD)
            for rank, (attempt, _) in texts.items():
                if rank != self.rank:
                    self._send(self.comm, (self._round, attempt, None), rank, _TOLD)

        def is_complete() -> bool:
            for rank, (number, attempt, told) in self._receive(self.comm, _TOLD):
                if told is None:
                    self._read[number][rank] = attempt
                elif number >= self._round:  # a later one is answered in its own round
                    self._texts[number][rank] = (attempt, told)
                    if number == self._round:
                        self._send(self.comm, (number, attempt, None), rank, _TOLD)
            return len(texts) == self.world and list(read.values()).count(self._attempt) == self.world - 1

        self.begun += 1
        if not self._poll(is_complete, "all_gather_text", deadline):
            self.begun -= 1
            absent = [rank for rank in range(self.world) if rank not in texts]
            raise AbsentError(absent, f"ranks {absent} did not come within {seconds:.0f} s of rank {self.rank}")
        self.ended += 1
        del self._texts[self._round], self._read[self._round]
        self._round, self._attempt = self._round + 1, 0
        return [texts[rank][1] for rank in range(self.world)]

    # ---- who has left -----------------------------------------------------------------------------------------------
    def _listen(self) -> None:
        if self._making is None:
            self._left.update(self._receive(self.comm, _LEFT))

    def leave(self, error: BaseException | None = None) -> None:
        """Tells the other ranks that this one leaves, and how far it came; a second call does nothing. It waits for nothing:
        freeing the communicator would need all ranks. A duplicate that was never opened here is kept for the next line.
        """
        with _turn:
            if self.closed:
                return
            self.closed = True
            if self.mpi.Is_finalized():
                return
            if self._making is not None:  # even if it is complete by now: others may not know, and begin no other
                self._unfinished[self._key].append((self.comm, self._making))
                return
            self._send_all(self.comm, (self.ended, _describe(error)[:_TEXT_BYTES]), _LEFT)
            self._abandoned.append(self._sent)


def _describe(error: BaseException | None) -> str:
    """The reason why a rank leaves: its error, or the one that ends its process."""
    error = error or getattr(sys, "last_value", None)
    return "it has ended without an error, after fewer steps" if error is None else f"{type(error).__name__}: {error}"
