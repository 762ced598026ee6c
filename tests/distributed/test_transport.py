"""Promises of every transport: it gives what the simulator gives, refuses before anything is sent, and never hangs.

A new kind of transport that is registered comes under it without being listed: it is made in processes that know each other
over gloo. One that needs a launcher of its own has a line in :func:`beside` and one in the fixture ``pools``.
"""

from __future__ import annotations

import gc
import re
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Permute, ReduceScatter
from grace.errors import FingerprintMismatch, RoundMismatch, TransportError
from grace.run.simulate import answers
from grace.transports import mpi_line
from grace.transports.agreement import agree
from grace.transports.base import Transport
from grace.transports.candidates import TRANSPORTS
from grace.transports.checked import Checked
from grace.transports.horovod import HorovodTransport
from grace.transports.mpi import MPITransport, describe_library
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import LaunchedPool, MPIPool, Pool, run_under_mpi
from tests.patience import PATIENCE
from tests.tiers import CAUGHT

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64)
AnyPool = Pool | LaunchedPool


def beside(kind: str) -> Transport:
    """A new transport between the ranks of a pool; not ready before its first all_gather_text."""
    if kind == "horovod":
        return HorovodTransport(seconds=PATIENCE)
    if kind == "mpi":
        return MPITransport(seconds=PATIENCE)
    return TorchDistributed.of_same_ranks() if kind == "gloo" else TRANSPORTS.find(kind).make()


def ready(kind: str) -> Transport:
    transport = beside(kind)
    transport.all_gather_text("", seconds=PATIENCE)
    return transport


def ops_of(rank: int, world: int, dtype: torch.dtype) -> list[Collective]:
    """Every collective, with small whole numbers that sum exactly in every dtype."""
    x = (torch.arange(6) + rank).to(dtype).view(2, 3)
    rows = (torch.arange(world * 4) * (rank + 1)).remainder(11).to(dtype).view(world, 4)
    ring = tuple((r, (r + 1) % world) for r in range(world))
    ops: list[Collective] = [
        AllReduce(x, "sum"), AllReduce(x, "max"), AllReduce(x.clone(), "sum", donate=True), AllReduce(x.t(), "sum"),
        AllReduce(x[0, 0], "sum"), AllGather(x), AllGather(x.t()), AllGather(x[0, 0]), AllToAll(rows), AllToAll(rows[:, :0]),
        ReduceScatter(rows, "sum"), ReduceScatter(rows, "max"), Broadcast(x, world - 1), Broadcast(x[:0], 0),
        Permute(x, ring), Permute(x, ((0, 1),)), Permute(x, ((1, 1),)), AllGather(x[:0]), AllReduce(x[:0], "sum"),
    ]  # fmt: skip
    if dtype.is_floating_point:
        ops += [AllReduce(x * world, "mean"), AllReduce((x * world).t().clone(), "mean", donate=True),
                ReduceScatter(rows * world, "mean")]  # fmt: skip
    return ops


def every_collective(rank: int, world: int, kind: str) -> int:
    transport, checked = ready(kind), 0
    for dtype in DTYPES:
        everyone = [ops_of(r, world, dtype) for r in range(world)]
        for i, op in enumerate(everyone[rank]):
            before = op.buf.clone()
            expected = answers([ops[i] for ops in everyone])[rank]
            answer = transport.run(op)
            assert answer.dtype == dtype
            assert torch.equal(answer, expected), (op, answer, expected)
            assert torch.equal(op.buf, before) or (isinstance(op, AllReduce) and op.donate), f"{op} changed its buffer"
            checked += 1
    flags = torch.tensor([rank == 0, True])
    assert transport.run(AllGather(flags)).tolist() == [[r == 0, True] for r in range(world)]
    transport.close()
    return checked


def test_every_collective_in_every_dtype_as_simulated(workers: AnyPool) -> None:
    assert workers.run(every_collective, workers.kind) == [19 * len(DTYPES) + 4 * 3] * workers.world


def every_collective_with(defect: str, own: Callable[[Transport, Collective], Any]) -> Any:
    """A transport's ``run`` with a defect, as one of its collectives could have it."""

    def run(transport: Transport, op: Collective) -> Any:
        if defect == "mean without 1/W" and isinstance(op, AllReduce) and op.op == "mean":
            return own(transport, replace(op, op="sum"))
        if defect == "maximum that adds" and isinstance(op, AllReduce | ReduceScatter) and op.op == "max":
            return own(transport, replace(op, op="sum"))
        if defect == "another root" and isinstance(op, Broadcast):
            return own(transport, replace(op, root=(op.root + 1) % transport.world))
        answer = own(transport, op)
        return answer.flip(0) if defect == "rows in another order" and isinstance(op, AllGather | AllToAll) else answer

    return run


def with_defect(rank: int, world: int, kind: str, defect: str) -> str:
    made: Any = MPITransport if kind == "mpi" else TorchDistributed
    with mock.patch.object(made, "run", every_collective_with(defect, made.run)):
        try:
            every_collective(rank, world, kind)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    "defect", [name for name, test in CAUGHT.items() if test.endswith("test_a_transport_with_a_defect_is_caught")]
)
@pytest.mark.parametrize("kind", ["gloo", "mpi"])
def test_a_transport_with_a_defect_is_caught(pools: Callable[[str, int], Any], kind: str, defect: str) -> None:
    assert all(pools(kind, 3).run(with_defect, kind, defect))


def one_answer(rank: int, world: int, kind: str) -> None:
    transport = ready(kind)
    random = torch.Generator().manual_seed(rank)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for size in (1, 7, 1000, 70_001):
            x = torch.randn(size, generator=random).to(dtype)
            for op in ("sum", "mean", "max"):
                answer = transport.run(AllReduce(x, op))
                for other in transport.run(AllGather(answer.view(torch.uint8))):
                    assert torch.equal(other, answer.view(torch.uint8)), f"{op} of {size} {dtype}"
    transport.close()


def test_a_reduction_has_the_same_bits_on_all_ranks(workers: AnyPool) -> None:
    workers.run(one_answer, workers.kind)


def refusals(rank: int, world: int, kind: str) -> None:
    transport = ready(kind)
    bad = [
        AllReduce(torch.ones(3, dtype=torch.int32), "mean"), AllReduce(torch.ones(3, dtype=torch.int16), "sum"),
        AllReduce(torch.ones(3, dtype=torch.bool), "sum"), AllGather(torch.ones(3, dtype=torch.complex64)),
        AllToAll(torch.ones(world + 1, 2)), ReduceScatter(torch.ones(()), "sum"), Broadcast(torch.ones(2), world),
        Permute(torch.ones(2), ((0, world),)),
    ]  # fmt: skip
    if kind == "mpi":
        bad.append(AllReduce(torch.ones(3, device="meta")))
    for op in bad:
        if rank == 0:  # one rank alone: the others never hear of it
            with pytest.raises(TransportError, match="nothing was sent"):
                transport.run(op)
    assert transport.run(AllReduce(torch.ones(2), "sum")).tolist() == [world, world]
    transport.close()


def test_what_would_fail_is_refused_before_it_poisons_the_group(workers: AnyPool) -> None:
    workers.run(refusals, workers.kind)


def checked_mismatch(rank: int, world: int, kind: str) -> str:
    transport = Checked(ready(kind))
    assert transport.run(AllReduce(torch.ones(2), "sum")).tolist() == [world, world]
    with pytest.raises(RoundMismatch) as caught:
        transport.run(AllGather(torch.ones(2)) if rank == 0 else AllGather(torch.ones(3)))
    assert transport.run(AllReduce(torch.ones(2), "sum")).tolist() == [world, world]
    transport.close()
    return str(caught.value)


def test_checked_names_what_each_rank_asked_for(workers: AnyPool) -> None:
    for message in workers.run(checked_mismatch, workers.kind):
        assert "ranks [0]: collective 2: AllGather(float32, (2,))" in message
        assert "AllGather(float32, (3,))" in message


_kept: dict[str, Transport] = {}


def meet(kind: str) -> None:
    """The ranks of a pool go on together, without a transport of Grace's."""
    if kind == "mpi":
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
    elif kind == "horovod":
        import horovod.torch

        horovod.torch.barrier()
    else:
        dist.barrier()


def late_rank(rank: int, world: int, kind: str, begins: bool) -> str:
    meet(kind)  # so that only the last one comes too late
    if rank == world - 1 and not begins:
        return "did not come"
    _kept[kind] = transport = beside(kind)
    if rank == world - 1:
        return "did not come"
    try:
        agree({"method": "topk"}, transport, seconds=1.0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "agreed"


def afterwards(rank: int, world: int, kind: str, again: bool) -> list[str]:
    transport = _kept.pop(kind, None)
    if transport is None or not again:
        if transport is not None:
            transport.close()
        transport = beside(kind)
    texts = transport.all_gather_text(f"text {rank}", seconds=PATIENCE)
    assert transport.all_gather_text("", seconds=PATIENCE) == [""] * world
    assert transport.run(AllReduce(torch.ones(2), "sum")).tolist() == [world, world]
    transport.close()
    with pytest.raises(TransportError, match="has left"):
        transport.run(AllReduce(torch.ones(2), "sum"))
    with pytest.raises(TransportError, match="has left"):
        transport.all_gather_text("x", seconds=1.0)
    return texts


@pytest.mark.parametrize("again", [True, False], ids=["the same transport", "another"])
def test_a_rank_that_never_attaches_is_named_and_may_come_later(workers: AnyPool, again: bool) -> None:
    messages = workers.run(late_rank, workers.kind, again)
    for message in messages[:-1]:
        assert message.startswith(f"FingerprintMismatch: ranks [{workers.world - 1}] did not attach Grace within 1 s")
    assert workers.run(afterwards, workers.kind, again) == [[f"text {r}" for r in range(workers.world)]] * workers.world


def complete_but_never_opened(rank: int, world: int) -> list[str]:
    """The last rank comes just before the others, which gave up on it, close: their connection is complete by then."""
    from mpi4py import MPI

    transport: Any = None if rank == world - 1 else MPITransport()
    MPI.COMM_WORLD.Barrier()
    transport = transport or MPITransport()
    while not transport._line._making.Test():
        time.sleep(0.001)
    MPI.COMM_WORLD.Barrier()
    if rank != world - 1:
        transport.close()
        transport = MPITransport()
    texts: list[str] = transport.all_gather_text(f"text {rank}", seconds=PATIENCE)
    transport.close()
    return texts


def test_a_rank_that_comes_while_the_others_give_up_finds_their_next_transport(mpi: MPIPool) -> None:
    assert mpi.run(complete_but_never_opened) == [[f"text {r}" for r in range(mpi.world)]] * mpi.world


def differing(rank: int, world: int, kind: str) -> str:
    transport = beside(kind)
    with pytest.raises(FingerprintMismatch) as caught:
        agree({"method": "topk" if rank else "qsgd"}, transport, seconds=PATIENCE)
    transport.close()
    return str(caught.value)


def test_what_differs_is_told_on_every_rank(workers: AnyPool) -> None:
    for message in workers.run(differing, workers.kind):
        assert message.startswith("ranks are configured differently. method: qsgd on ranks [0], topk on ranks [1")


def long_texts(rank: int, world: int, kind: str) -> None:
    transport = beside(kind)
    texts = [str(r) * 300_000 for r in range(world)]
    assert transport.all_gather_text(texts[rank], seconds=PATIENCE) == texts
    transport.close()


def test_texts_may_be_long(workers: AnyPool) -> None:
    workers.run(long_texts, workers.kind)


def two_at_once(rank: int, world: int, kind: str) -> None:
    transports = [ready(kind), ready(kind)]
    totals: list[Any] = [None, None]

    def work(which: int) -> None:
        totals[which] = [
            transports[which].run(AllReduce(torch.full((5000,), float(step + which)), "sum"))[0].item()
            for step in range(30)
        ]

    order = (0, 1) if rank == 0 else (1, 0)  # as exchanges of two models meet
    threads = [threading.Thread(target=work, args=(which,)) for which in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert totals == [[float(world * (step + which)) for step in range(30)] for which in (0, 1)]
    for transport in transports:
        transport.close()


def test_two_at_once_do_not_meet(workers: AnyPool) -> None:
    workers.run(two_at_once, workers.kind)


def failing(rank: int, world: int, kind: str) -> str:
    return fail_on_one_rank(ready(kind), rank)


def fail_on_one_rank(transport: Transport, rank: int, deadline: float | None = None) -> str:
    """Errors of the others when rank 1 fails. ``deadline``: of an answer that does not come, if the transport has its own."""
    transport.run(AllReduce(torch.ones(2)))
    if rank == 1:
        time.sleep(0.1)  # the others wait
        transport.close(ValueError("a problem of rank 1"))
        return "closed"
    start = time.monotonic()
    if deadline is not None:
        assert isinstance(transport, MPITransport)
        transport.seconds = deadline
    with pytest.raises(TransportError) as caught:
        transport.run(AllReduce(torch.ones(2)))
    assert time.monotonic() - start < PATIENCE / 2, "it heard by the deadline only"
    transport.close(caught.value)
    return str(caught.value)


def check_that_all_hear(messages: list[str], kind: str) -> None:
    for rank, message in enumerate(messages):
        if rank != 1:
            assert "AllReduce(mean, float32, (2,)) failed" in message
            if kind in ("mpi", "horovod"):  # torch's own network says that somebody left, and not why
                assert "rank 1 has left (ValueError: a problem of rank 1)" in message


def test_a_rank_that_closes_with_an_error_wakes_the_others(workers: AnyPool) -> None:
    messages = workers.run(failing, workers.kind)
    if isinstance(workers, LaunchedPool) and workers.kind == "horovod":
        workers.retire()  # there is no second start of Horovod in a process
    check_that_all_hear(messages, workers.kind)


def closing_meanwhile(rank: int, world: int) -> list[str]:
    """Each rank closes its transport between the checks of a collective and its start, as another thread may."""
    transport = TorchDistributed.of_same_ranks()
    transport.all_gather_text("", seconds=PATIENCE)
    groups: list[Any] = []

    def note(*_: object, group: Any) -> None:
        groups.append(group)

    def close(*_: object) -> None:
        transport.close(ValueError("met by another thread"))

    with (
        mock.patch("grace.transports.torch_distributed.refuse_unfit", close),
        mock.patch.object(dist, "all_reduce", note),
    ):
        transport.run(AllReduce(torch.ones(2)))
    return ["the default one" if group in (None, dist.group.WORLD) else "its own" for group in groups]


def test_a_collective_during_which_the_transport_closes_never_reaches_the_users_group(pair: Pool) -> None:
    assert pair.run(closing_meanwhile) == [["its own"]] * 2


def letting_go(rank: int, world: int) -> int:
    """Number of tensors that are still held when a transport has closed; as a thread of gloo, one is for a moment."""
    transport = TorchDistributed.of_same_ranks()
    transport.all_gather_text("", seconds=PATIENCE)
    held: list[torch.Tensor] = []

    def hold(x: torch.Tensor, *_: object, group: Any) -> None:
        held.append(x)
        threading.Timer(0.1, held.clear).start()

    with mock.patch.object(dist, "all_reduce", hold):
        transport.run(AllReduce(torch.ones(2)))
    transport.close()
    return len(held)


def test_a_group_outlives_the_tensors_that_its_threads_hold(pair: Pool) -> None:
    """Until torch 2.7, destroying it earlier can wait for ever: the threads need the lock of the interpreter."""
    assert pair.run(letting_go) == [0, 0]


def library(rank: int, world: int) -> str:
    from mpi4py import MPI

    return describe_library(MPI)


def test_each_pool_runs_over_the_mpi_that_it_names(mpi: MPIPool) -> None:
    """Two MPIs, where the system has Open MPI."""
    for name in mpi.run(library):
        assert name.startswith(mpi.library), name


# ---- what MPI lacks, and the transport adds -------------------------------------------------------------------------
def without_the_alarm(rank: int, world: int, mutant: str) -> str:
    transport = MPITransport(seconds=PATIENCE)
    transport.all_gather_text("", seconds=PATIENCE)
    line: Any = transport._line
    if mutant == "who leaves says nothing" and rank == 1:
        line._send_all = lambda *ignored: None
    if mutant == "who waits does not listen":
        line._listen = lambda: None
    return fail_on_one_rank(transport, rank, deadline=2.0)


@pytest.mark.parametrize("mutant", ["who leaves says nothing", "who waits does not listen"])
def test_a_transport_without_the_alarm_is_caught_by_its_deadline(mpi: MPIPool, mutant: str) -> None:
    """Catches "a rank that leaves and says nothing"."""
    messages = mpi.run(without_the_alarm, mutant)
    with pytest.raises(AssertionError, match="has left"):
        check_that_all_hear(messages, "mpi")
    assert any("no answer within 2 s" in message for message in messages)


def dropped_within_a_call(rank: int, world: int) -> list[float]:
    """Any allocation may collect garbage, and with it a transport that nobody holds, which then tells that it leaves."""
    dropped, kept = [ready("mpi")], ready("mpi")
    assert isinstance(kept, MPITransport)
    kept._line.start(dropped.clear)
    total: list[float] = kept.run(AllReduce(torch.ones(2), "sum")).tolist()
    kept.close()
    return total


def test_a_transport_that_is_dropped_while_another_is_in_mpi_does_not_hang(mpi: MPIPool) -> None:
    assert mpi.run(dropped_within_a_call) == [[mpi.world] * 2] * mpi.world


class Watched:
    """A communicator that notes who calls it without the turn."""

    def __init__(self, comm: Any):
        self._comm = comm
        self.out_of_turn: list[str] = []
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if not mpi_line._turn._is_owned():
                self.out_of_turn.append(name)
            return getattr(self._comm, name)(*args, **options)

        return call


def turns(rank: int, world: int) -> tuple[int, list[str]]:
    transport: Any = ready("mpi")
    transport._line.comm = watched = Watched(transport._line.comm)
    for dtype in (torch.float32, torch.bfloat16):
        for op in ops_of(rank, world, dtype):
            transport.run(op)
    transport.close()
    return watched.calls, watched.out_of_turn


def test_one_thread_at_a_time_calls_mpi(mpi: MPIPool) -> None:
    for calls, out_of_turn in mpi.run(turns):
        assert calls > 40
        assert not out_of_turn


def leaving_after_the_work(rank: int, world: int) -> str:
    transport: MPITransport | None = MPITransport(seconds=PATIENCE)
    assert transport is not None
    transport.all_gather_text("", seconds=PATIENCE)
    if rank == 0:
        transport.run(Permute(torch.ones(2), ((0, 1),)))
        transport = None  # dropped, which tells the others, too
        gc.collect()
        return ""
    time.sleep(0.2)
    assert transport.run(Permute(torch.zeros(2), ((0, 1),))).tolist() == [float(rank == 1)] * 2
    with pytest.raises(TransportError, match="AllReduce") as caught:
        transport.run(AllReduce(torch.ones(2)))
    return str(caught.value)


def test_who_leaves_after_its_part_harms_nobody_until_it_is_needed(mpi: MPIPool) -> None:
    for message in mpi.run(leaving_after_the_work)[1:]:
        assert (
            "rank 0 has left (it has ended without an error, after fewer steps)" in message
            or "rank 1 has left" in message
        )


def maximum_of_nan(rank: int, world: int) -> None:
    transport = ready("mpi")
    x = torch.tensor([float(rank), float("nan") if rank == 0 else 1.0])
    assert transport.run(AllReduce(x, "max")).tolist()[0] == world - 1
    assert torch.isnan(transport.run(AllReduce(x, "max"))[1])
    transport.close()


def test_the_maximum_of_a_nan_is_nan_on_all_ranks(mpi: MPIPool) -> None:
    mpi.run(maximum_of_nan)


# ---- jobs whose ranks end -------------------------------------------------------------------------------------------
SCRIPT = """
import os, signal, sys, time
import torch, grace
from grace.collectives import AllReduce

torch.set_num_threads(1)
transport = grace.transport()
transport.all_gather_text("", seconds=600)
start = time.monotonic()
try:
    for step in range(6):
        if step == 3 and transport.rank == 1:
            if sys.argv[1] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if sys.argv[1] == "raise":
                raise ValueError("a problem of the user's")
        total = transport.run(AllReduce(torch.ones(1000), "sum"))
except grace.GraceError as error:
    sys.stdout.write(f"rank {transport.rank} after {time.monotonic() - start:.1f} s: {type(error).__name__}: {error}\\n")
    sys.exit(5)
sys.stdout.write(f"rank {transport.rank} of {transport.world} done over {transport.name}: {total[0]}\\n")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


# A job that ends well, and one that mpiexec ends: by day the pools end well, and the page on MPI does.
ENDS = pytest.mark.night("a rank that leaves and says nothing")


@ENDS
def test_a_good_job_over_mpi_ends_well(script: Path) -> None:
    done = run_under_mpi(script, "fine", workers=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"rank {rank} of 2 done over mpi: 2.0" in done.stdout for rank in (0, 1))


def test_an_error_of_the_users_ends_the_job_and_the_others_hear_which(script: Path) -> None:
    """MPI's own end waits for nobody then."""
    done = run_under_mpi(script, "raise", workers=2)
    assert done.returncode != 0
    heard = re.search(
        r"rank 0 after ([0-9.]+) s: TransportError: .* rank 1 has left \(ValueError: a problem", done.stdout
    )
    assert heard, done.stdout + done.stderr
    assert float(heard[1]) < PATIENCE / 4, "it heard by a deadline only"


@ENDS
def test_a_killed_worker_ends_the_job(script: Path) -> None:
    start = time.monotonic()
    done = run_under_mpi(script, "kill", workers=2)
    assert done.returncode != 0
    assert "done" not in done.stdout
    assert time.monotonic() - start < PATIENCE / 2, "it ended by a deadline only"
