"""Collectives through shared memory, between threads: what they answer, who is named when they fail, and who does without."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Permute, ReduceScatter
from grace.compute import native
from grace.errors import TransportError
from grace.run.simulate import answers
from grace.transports import joining, machine, segment
from grace.transports.launchers import LocalWorld
from grace.transports.machine import MachineTransport
from grace.transports.segment import Segment, find_problem, make_memory
from tests.unit.networks import in_threads

WORLD, SLOT, NONCE = 3, 64 * 3, bytes(16)
needs_memory = pytest.mark.skipif(find_problem() is not None, reason=str(find_problem()))
# Nothing, one, as much as a slot of float32 (48) or of one row of three (16), one beside it, odd, and many pieces.
SIZES = (0, 1, 7, 15, 16, 17, 47, 48, 49, 96, 1001, 9001)
MAKERS: Sequence[Callable[[Tensor], Collective]] = (
    lambda x: AllReduce(x, "sum"), lambda x: AllReduce(x, "max"), AllReduce, lambda x: AllReduce(x.clone(), donate=True),
    AllGather, lambda x: AllGather(x, into=x.new_empty(WORLD, *x.shape)), lambda x: AllGather(x.bool()),
    lambda x: AllGather(x.to(torch.uint8)), lambda x: AllToAll(torch.stack([x, 2 * x, 3 * x])),
    lambda x: ReduceScatter(torch.stack([x, 2 * x, 3 * x])), lambda x: ReduceScatter(torch.stack([x] * WORLD), "max"),
    lambda x: Broadcast(x, 2), lambda x: Permute(x, ((0, 1), (1, 2))), lambda x: Permute(x, ((1, 1),)),
)  # fmt: skip


def numbers(rank: int, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank))


def ready(member: Any, slot: int = SLOT) -> MachineTransport:
    transport = MachineTransport(member, ranks=[4, 5, 6], slot=slot)
    assert transport.all_gather_text(str(member.rank), seconds=20.0) == ["0", "1", "2"]
    return transport


def compare(member: Any, rank: int) -> str:
    transport = ready(member)
    for size in SIZES:
        for make in MAKERS:
            expected = answers([make(numbers(r, size)) for r in range(WORLD)])[rank]
            op = make(numbers(rank, size))
            assert torch.equal(transport.run(op), expected), (size, op)
    return transport.name


@needs_memory
def test_every_collective_has_the_simulators_bits_in_all_sizes() -> None:
    assert in_threads(WORLD, compare) == ["shared memory"] * WORLD


@needs_memory
def test_sums_of_sixteen_bits_are_made_in_float32_and_rounded_once() -> None:
    def job(member: Any, rank: int) -> Tensor:
        return ready(member).run(AllReduce(torch.full((100,), 2.0 ** (-8 if rank else 0), dtype=torch.bfloat16), "sum"))

    for total in in_threads(WORLD, job):
        assert torch.equal(total, torch.full((100,), 1 + 2.0**-7, dtype=torch.bfloat16))


def other_order(rows: Tensor, op: Any, out: Any = None) -> Tensor:
    return machine_reduce_rows(rows.flip(0), op, out)


machine_reduce_rows = machine.reduce_rows


@needs_memory
def test_sums_in_another_order_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "reduce_rows", other_order)
    assert all(isinstance(result, AssertionError) for result in in_threads(WORLD, compare))


# ---- turns -----------------------------------------------------------------------------------------------------------
def two_views(seconds: float = 60.0, process: int | None = None) -> list[Segment]:
    """Both ranks' views of one memory, in one thread."""
    memory = make_memory(2, 64, NONCE)
    try:
        return [
            Segment(
                memory,
                rank,
                [8, 9],
                64,
                NONCE,
                [os.pidfd_open(os.getpid()), os.pidfd_open(process or os.getpid())],
                seconds,
            )
            for rank in range(2)
        ]
    finally:
        os.close(memory)


def arrive(view: Segment, asked: int = 1) -> None:
    view._arrive(view._address + segment._LINES, view.rank, view._turn + 1, asked)


def goes_on_while_another_reads(views: list[Segment]) -> None:
    """Rank 0 writes for its next turn before rank 1 has read."""
    first, last = views
    for turn in range(1, 6):
        first.own.fill_(turn)
        last.own.fill_(10 * turn)
        arrive(last)
        rows = first.turn(1)
        first.own.fill_(99)
        assert rows[:, 0].tolist() == last.turn(1)[:, 0].tolist() == [turn, 10 * turn]


@needs_memory
def test_nobody_writes_what_another_still_reads() -> None:
    goes_on_while_another_reads(two_views())
    one_slot = two_views()
    for view in one_slot:
        view._slots = view._slots[:1].expand(2, -1, -1)
    with pytest.raises(AssertionError):
        goes_on_while_another_reads(one_slot)


@pytest.fixture
def child() -> Any:
    """A process that sleeps."""
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@needs_memory
def test_a_process_that_was_killed_is_named_though_it_came_before(child: int) -> None:
    first, _ = views = two_views(process=child)
    arrive(views[1])
    os.kill(child, signal.SIGKILL)
    first.turn(1)  # to which it had come
    for _ in range(2):
        with pytest.raises(TransportError, match=r"^rank 9 has died\n"):
            first.turn(1)


@needs_memory
def test_without_a_look_at_the_processes_only_the_time_is_told(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment._Processes, "find_dead", lambda _: None)
    first, _ = two_views(seconds=0.1, process=child)
    os.kill(child, signal.SIGKILL)
    with pytest.raises(TransportError, match=r"^rank 9 did not come within 0 s\n"):
        first.turn(1)


@needs_memory
def test_a_rank_that_leaves_or_asks_for_something_else_is_named() -> None:
    first, last = two_views()
    arrive(last)
    last.end()
    first.turn(1)  # to which it had come
    with pytest.raises(TransportError, match=r"^rank 9 has left, with an error or after fewer steps\n"):
        first.turn(1)
    with pytest.raises(TransportError, match=r"^rank 9 has left, with an error or after fewer steps\n"):
        last.turn(1)
    first, last = two_views()
    arrive(last, asked=2)
    with pytest.raises(TransportError, match=r"^rank 9 asks for another collective\n"):
        first.turn(1)
    last._turn += 1
    with pytest.raises(TransportError, match=r"^rank 9 asks for another collective\n"):
        last.turn(2)


@needs_memory
def test_other_memory_is_refused() -> None:
    memory = make_memory(2, 64, NONCE)
    with pytest.raises(ValueError, match="not the memory"):
        Segment(memory, 0, [0, 1], 64, b"x" * 16, [os.pidfd_open(os.getpid()) for _ in range(2)], 1.0)
    os.close(memory)


@needs_memory
def test_descriptors_are_closed_with_the_transport() -> None:
    def descriptors() -> list[str]:
        """Descriptors of its kinds: a process has others, which come and go."""
        places = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # of the listing itself
                places.append(os.readlink(f"/proc/self/fd/{name}"))
        return sorted(place for place in places if place.startswith(("/memfd:", "socket:", "anon_inode:[pidfd]")))

    gc.collect()  # what other tests have left
    before = descriptors()
    assert in_threads(WORLD, lambda member, _: ready(member).close()) == [None] * WORLD
    assert descriptors() == before


@needs_memory
def test_what_is_refused_says_so_and_who_has_left_is_named() -> None:
    def job(member: Any, rank: int) -> None:
        transport = ready(member)
        with pytest.raises(TransportError, match="nothing was sent"):
            transport.run(AllReduce(torch.zeros(2, dtype=torch.bool)))
        transport.run(AllReduce(torch.ones(2)))
        if rank == 1:
            transport.close()
            return
        with pytest.raises(TransportError, match=r"rank [46]: AllReduce.* failed in shared memory: rank 5 has left"):
            transport.run(AllReduce(torch.ones(2)))

    assert in_threads(WORLD, job) == [None] * WORLD


# ---- who does without ------------------------------------------------------------------------------------------------
def without(member: Any, rank: int) -> str:
    transport = ready(member)
    assert transport.run(AllGather(torch.tensor([rank]))).flatten().tolist() == [0, 1, 2]
    assert transport.name == "threads"
    return transport.why


PLACES = itertools.count()


def fail_to_make(world: int, slot: int, nonce: bytes) -> int:
    raise OSError(28, "No space left on device")


@needs_memory
@pytest.mark.parametrize(("change", "why"), [
    (lambda patch: patch.setenv("GRACE_LOCAL_WORLD_SIZE", "2"), "rank 4 cannot share memory: GRACE_LOCAL_WORLD_SIZE=2"),
    (lambda patch: patch.setattr(joining, "find_local_world", lambda: LocalWorld(2, "local_world_size")),
     "rank 4 cannot share memory: local_world_size=2"),
    (lambda patch: patch.setattr(native, "find", lambda *_: None), "rank 4 cannot share memory: it needs the native library"),
    (lambda patch: patch.delattr(os, "memfd_create"), "rank 4 cannot share memory: this system has no memfd_create"),
    (lambda patch: patch.setattr(joining, "find_place", lambda: next(PLACES)), "not on one machine, or in other"),
    (lambda patch: patch.setattr(joining, "make_memory", fail_to_make), "No space left on device"),
])  # fmt: skip
def test_ranks_that_cannot_share_do_without_on_all_alike(
    change: Callable[[pytest.MonkeyPatch], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    told = in_threads(WORLD, without)
    assert len(set(told)) == 1, told
    assert told[0].startswith("no shared memory: "), told
    assert why in told[0]


@needs_memory
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.*JAX:RuntimeWarning")
def test_a_forked_child_that_drops_it_says_nothing() -> None:
    first, last = two_views()
    child = os.fork()
    if child == 0:
        try:
            last.end()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    arrive(last)
    assert first.turn(1).shape == (2, 64)


@needs_memory
def test_a_crowd_of_strangers_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever connects first, and in whatever numbers: those of other users are closed at once, and ranks come in."""
    nonce, real = os.urandom(16), joining._user_of
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(joining._address(nonce))
        listener.listen(4)
        crowd: list[socket.socket] = []
        with contextlib.suppress(BlockingIOError):
            while True:  # until the system lets nobody wait any more
                crowd.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)))
                crowd[-1].setblocking(False)
                crowd[-1].connect(joining._address(nonce))
        strangers = iter(range(len(crowd) - 1))

        def user_of(other: socket.socket) -> int:
            accepted = other.getsockname() == joining._address(nonce).encode()
            return -1 if accepted and next(strangers, None) is not None else real(other)

        monkeypatch.setattr(joining, "_user_of", user_of)
        got: list[list[int]] = []
        rank = threading.Thread(target=lambda: got.append(joining._receive(1, nonce)))
        rank.start()
        got.append(joining._hand_out(listener, 2, 64, nonce))
        rank.join()
        assert next(strangers, None) is None, "all of them were seen"
        assert len(crowd) > 4
        for stranger in crowd[:-1]:
            stranger.setblocking(True)
            assert stranger.recv(1) == b"", "closed, and told nothing"
        for descriptors in got:
            joining._close_all(descriptors)
    assert len(got) == 2
