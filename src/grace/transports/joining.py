"""Joining of a machine's ranks to shared memory: they find out that they can, and hand each other what it takes.

Ranks share a machine if they have the same boot id and the same network namespace: a job whose links are shaped between
namespaces of one machine does not go around its links. The first rank makes the memory and hands it out over a Unix socket
in the abstract name space: neither leaves anything behind, however the processes end.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.transports.base import Transport
from grace.transports.launchers import find_local_world
from grace.transports.segment import Segment, find_problem, make_memory

MOST = 200  # ranks: one message carries a descriptor for each
_SECONDS = 10.0  # for what takes a moment on one machine
_BACKLOG = 4096  # connections that wait: names of sockets are for all to read, and strangers may come in numbers
_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), "/proc/self/ns/net"


def find_place() -> list[str]:
    """The identity of a machine, equal for its ranks: boot id, network namespace, user.

    Raises:
        OSError: the system does not tell.
    """
    return [_BOOT.read_text(encoding="ascii").strip(), os.readlink(_NAMESPACE), str(os.getuid())]


def find_why_alone(world: int) -> str | None:
    """The reason why this rank cannot share memory with ``world`` ranks in all; None if nothing stands against it.

    Raises:
        ConfigurationError: GRACE_LOCAL_WORLD_SIZE is no whole number >= 1.
    """
    if (local := find_local_world()) is not None and local.workers < world:
        return f"{local.said_by}={local.workers}"
    if world > MOST:
        return f"at most {MOST} processes share memory"
    if (problem := find_problem()) is not None:
        return problem
    try:
        find_place()
    except OSError as error:
        return f"the system does not tell which machine this is: {error}"
    return None


def join(line: Transport, ranks: Sequence[int], slot: int, seconds: float, patience: float) -> Segment | str:
    """Shares memory with the ranks of ``line``; all of them call it alike.

    Args:
        line: between the ranks of one machine, perhaps. They tell each other over it what they need to know.
        ranks: their numbers, as errors name them.
        slot: bytes of a rank's slot, a multiple of 64.
        seconds: how long the slowest rank may take to come.
        patience: how long a rank waits for another in a collective, in seconds.

    Returns:
        The memory, or on all ranks why there is none.

    Raises:
        TransportError: the ranks could not be reached.
    """
    nonce, problem, place, listener = secrets.token_bytes(16), find_why_alone(line.world), [""], None
    with contextlib.ExitStack() as stack:
        if problem is None:
            place = find_place()
            if line.rank == 0:
                listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                listener.bind(_address(nonce))
                listener.listen(_BACKLOG)
        text = json.dumps({"problem": problem, "place": place, "nonce": nonce.hex(), "slot": slot})
        everyone = [json.loads(text) for text in line.all_gather_text(text, seconds=seconds)]
        if (problem := _compare(everyone, ranks)) is not None:
            return problem
        nonce, segment = bytes.fromhex(everyone[0]["nonce"]), None
        try:
            hand = _hand_out(listener, line.world, slot, nonce) if listener is not None else _receive(line.rank, nonce)
            try:
                segment = Segment(hand[0], line.rank, ranks, slot, nonce, hand[1:], patience)
            finally:
                os.close(hand[0])
        except (OSError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
            if listener is not None:
                listener.close()  # those who wait for the memory hear of it at once
        everyone = [{"problem": text or None} for text in line.all_gather_text(problem or "", seconds=seconds)]
    return segment if (problem := _compare(everyone, ranks)) is None and segment is not None else str(problem)


def _compare(everyone: Sequence[dict[str, Any]], ranks: Sequence[int]) -> str | None:
    """The reason why these ranks do not share memory."""
    for rank, facts in zip(ranks, everyone, strict=True):
        if facts["problem"] is not None:
            return f"rank {rank} cannot share memory: {facts['problem']}"
    for rank, facts in zip(ranks, everyone, strict=True):
        if facts.get("place") != everyone[0].get("place"):
            return f"ranks {ranks[0]} and {rank} are not on one machine, or in other network namespaces of it"
        if facts.get("slot") != everyone[0].get("slot"):
            return f"ranks {ranks[0]} and {rank} want slots of other sizes"
    return None


def _address(nonce: bytes) -> str:
    return f"\0grace-{nonce.hex()}"


def _hand_out(listener: socket.socket, world: int, slot: int, nonce: bytes) -> list[int]:
    """Makes the memory, and gives it to the others: its descriptor, then those of all processes."""
    until = time.monotonic() + _SECONDS
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as undo:
        processes = [os.pidfd_open(os.getpid())] + [-1] * (world - 1)
        undo.callback(lambda: _close_all([process for process in processes if process >= 0]))
        memory = make_memory(world, slot, nonce)
        undo.callback(os.close, memory)
        others: list[socket.socket] = []
        while len(others) < world - 1:
            listener.settimeout(max(until - time.monotonic(), 1e-3))
            other = listener.accept()[0]
            if _user_of(other) != os.getuid():
                other.close()  # at once: nothing is read of it, and nothing kept
                if time.monotonic() > until:
                    raise TimeoutError("other users' connections left no time for the ranks")
                continue
            stack.enter_context(other).settimeout(_SECONDS)
            message, descriptors = _take(other, 1)
            place = int.from_bytes(message, "little")
            if len(descriptors) != 1 or not 0 < place < world or processes[place] >= 0:
                _close_all(descriptors)
                raise ValueError(f"a process says that it is rank {place} of {world}")
            processes[place] = descriptors[0]
            others.append(other)
        for other in others:
            socket.send_fds(other, [b"memory"], [memory, *processes])
        undo.pop_all()
    return [memory, *processes]


def _receive(rank: int, nonce: bytes) -> list[int]:
    """Receives what the first rank hands out."""
    process = os.pidfd_open(os.getpid())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host:
            host.settimeout(_SECONDS)
            _connect(host, _address(nonce))
            if _user_of(host) != os.getuid():
                raise ValueError("the memory is another user's")
            socket.send_fds(host, [rank.to_bytes(4, "little")], [process])
            message, descriptors = _take(host, 1 + MOST)
            if not message or len(descriptors) < 2:
                _close_all(descriptors)
                raise ValueError("the first rank has not handed out the memory")
            return descriptors
    finally:
        os.close(process)


def _connect(host: socket.socket, address: str) -> None:
    """Connects, also where so many wait already that the system refuses more for the moment."""
    until = time.monotonic() + _SECONDS
    while True:
        try:
            return host.connect(address)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.001)


def _take(other: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """A message, and the descriptors that come with it, which children do not inherit."""
    size = array.array("i").itemsize
    message, extra, _, _ = other.recvmsg(64, socket.CMSG_SPACE(most * size), socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % size])
    return message, list(descriptors)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _user_of(other: socket.socket) -> int:
    pid_user_group = struct.Struct("3i")
    packed = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, pid_user_group.size)
    user: int = pid_user_group.unpack(packed)[1]
    return user
