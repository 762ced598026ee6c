"""Memory that the ranks of a machine share, and the turns that they take in it.

Page 0 has what the segment is (magic, version, ranks, bytes of a slot, a nonce), a word that says why nobody should wait any
more, and a line of 64 bytes for each rank: its turn, and what it asks for. Then come the slots, two for each rank, for turns
with even and with odd numbers.

In a turn each rank writes its own slot, says that it has come, waits until all have, and reads. A rank that has come to turn
t + 1 has read all it wants of turn t, so nobody writes a slot that another still reads.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import time
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import N, P
from grace.compute.resources import cores
from grace.errors import TransportError

LINE = 64
_HEAD = struct.Struct("<8sQQQ16s")
_MAGIC, _VERSION = b"grace", 1
_FAILED, _LINES = LINE, 2 * LINE  # where they are; the head comes first
_SPINS = 2000  # where each rank has a core; else whoever waits makes way
_LOOK = 10_000_000  # nanoseconds from one look after the others to the next


class Ending(IntEnum):
    """Reason why nobody should wait any more."""

    DIED = 1
    LATE = 2
    LEFT = 3
    APART = 4


def find_problem() -> str | None:
    """The reason why processes cannot share memory here; None if they can."""
    if not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
        return "this system has no memfd_create and pidfd_open, as Linux has"
    if native.find("wait", P, N, N, N, P, N, N) is None:
        return f"it needs the native library: {native.library()}"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"processes cannot be watched here: {error}"
    return None


def size_of(world: int, slot: int) -> int:
    """Bytes of a segment."""
    return _first_slot(world) + 2 * world * slot


def _head(world: int, slot: int, nonce: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, _VERSION, world, slot, nonce)


def _first_slot(world: int) -> int:
    page = mmap.PAGESIZE
    return -(-(_LINES + LINE * world) // page) * page


def make_memory(world: int, slot: int, nonce: bytes) -> int:
    """A descriptor of new memory without a name: it is gone with the last process that has it.

    Raises:
        OSError: there is not enough.
    """
    descriptor = os.memfd_create("grace", os.MFD_CLOEXEC)
    try:
        size = size_of(world, slot)
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, size)  # what is missing is told now, not by a signal later
        os.pwrite(descriptor, _head(world, slot, nonce), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Segment:
    """A rank's view of the memory.

    Args:
        descriptor: of the memory, which is mapped; it stays the caller's.
        rank: this rank's place in it.
        ranks: of all places, as errors name them.
        slot: bytes of a slot, a multiple of 64.
        nonce: what its maker has written into it, 16 bytes.
        processes: a pidfd for each place, which it takes over.
        seconds: how long it waits for a rank that lives.

    Raises:
        ValueError: it is another memory.
        OSError: it cannot be mapped.
    """

    def __init__(
        self,
        descriptor: int,
        rank: int,
        ranks: Sequence[int],
        slot: int,
        nonce: bytes,
        processes: Sequence[int],
        seconds: float,
    ):
        self.rank, self.ranks, self.slot, self.seconds = rank, tuple(ranks), slot, seconds
        self.world = world = len(self.ranks)
        self._processes = _Processes(processes, rank)
        shared = mmap.mmap(descriptor, size_of(world, slot), mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        if shared[: _HEAD.size] != _head(world, slot, nonce):
            raise ValueError("this is not the memory that was made for these ranks")
        memory = torch.frombuffer(shared, dtype=torch.uint8)
        self._address = memory.data_ptr()
        self._slots = memory[_first_slot(world) :].view(2, world, slot)
        self._turn, self._ended, self._process = 0, False, os.getpid()
        self._spins = _SPINS if cores() >= world else 0
        arrive, wait, fail = (
            native.find("arrive", P, N, N, N), native.find("wait", P, N, N, N, P, N, N), native.find("fail", P, N)
        )  # fmt: skip
        assert arrive is not None
        assert wait is not None
        assert fail is not None
        self._arrive, self._wait, self._fail = arrive, wait, fail

    @property
    def own(self) -> Tensor:
        """``[slot]`` uint8: where this rank writes before the next turn."""
        return self._slots[(self._turn + 1) & 1, self.rank]

    def turn(self, asked: int) -> Tensor:
        """All ranks call it once they have written: everybody's slots, ``[W, slot]``, readable until the next turn.

        Args:
            asked: what this rank asks for, as a number >= 0: the same on all ranks.

        Raises:
            TransportError: a rank died, left, asks for something else, or did not come in time; names it. No turn follows.
        """
        if self._ended:
            raise TransportError(self._explain())
        self._turn += 1
        lines, failed, end = self._address + _LINES, self._address + _FAILED, time.monotonic() + self.seconds
        self._arrive(lines, self.rank, self._turn, asked)
        while True:
            if not (status := self._look(asked, self._spins, _LOOK)):
                return self._slots[self._turn & 1]
            if status == -1:
                break
            if status < -1:
                self._fail(failed, _word(Ending.APART, -2 - status))
                break
            dead = self._processes.find_dead()
            if dead is not None:
                if not self._look(asked, 0, 0):  # it came to this turn before it ended
                    return self._slots[self._turn & 1]
                self._fail(failed, _word(Ending.DIED, dead))
                break
            if time.monotonic() > end:
                self._fail(failed, _word(Ending.LATE, status - 1))
                break
        self._ended = True
        raise TransportError(self._explain())

    def end(self) -> None:
        """No turn of this rank follows. Those who wait for it, or ever will, hear of it at once."""
        self._ended = True
        if os.getpid() == self._process:  # a forked child has nothing to say
            self._fail(self._address + _FAILED, _word(Ending.LEFT, self.rank))

    def _look(self, asked: int, spins: int, nanoseconds: int) -> int:
        lines, failed = self._address + _LINES, self._address + _FAILED
        status: int = self._wait(lines, self.world, self._turn, asked, failed, spins, nanoseconds)
        return status

    def _explain(self) -> str:
        kind, place = divmod(self._fail(self._address + _FAILED, 0), 1 << 32)
        who = f"rank {self.ranks[place]}"
        return {
            Ending.DIED: f"{who} has died",
            Ending.LATE: f"{who} did not come within {self.seconds:.0f} s",
            Ending.LEFT: f"{who} has left, with an error or after fewer steps",
            Ending.APART: f"{who} asks for another collective",
        }[Ending(kind)]


def _word(why: Ending, place: int) -> int:
    return (int(why) << 32) + place


class _Processes:
    """Watches the other processes by their pidfds, which are closed with it."""

    def __init__(self, descriptors: Sequence[int], own: int):
        self._descriptors = list(descriptors)
        self._poll = select.poll()
        for place, descriptor in enumerate(descriptors):
            if place != own:
                self._poll.register(descriptor, select.POLLIN)

    def find_dead(self) -> int | None:
        """The place of a process that has ended."""
        for descriptor, _ in self._poll.poll(0):
            return self._descriptors.index(descriptor)
        return None

    def __del__(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
