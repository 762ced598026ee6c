"""Compositions that are legal, wires whose sizes differ between ranks, padding, and answers that no peer sends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import grace
from benchmarks.overhead.ladder import list_allocations
from grace import Allgather, Allreduce, Broadcasts, ParameterServer, Peer, ScatterReduce
from grace.communicators.base import check_widths
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.lent import Lent
from grace.contract.method import Method
from grace.errors import CompositionError, ConfigurationError, PayloadError, StepMismatch
from grace.random import Stream
from grace.registry.policy import Policy
from grace.run import simulate
from grace.run.drive import drive
from grace.run.simulate import answers
from grace.run.worker import Worker

ALL = (Allreduce, Allgather, Broadcasts, ScatterReduce, ParameterServer)
RAGGED = (Allgather, Broadcasts, ScatterReduce, ParameterServer)


@dataclass(frozen=True)
class NonZeros(Compressor):
    """Indices and values of the non-zeros, as int32 pairs; nothing at all for zeros: the barest ragged wire."""

    varies: ClassVar[bool] = True

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        wires = []
        for row in rows:
            index = row.nonzero().view(-1)
            wires.append(torch.stack((index.float(), row[index])).T.reshape(-1).view(torch.uint8))
        rows.zero_()
        width = max(wire.numel() for wire in wires)
        # rows of one rank are padded to the longest with pairs that say nothing
        return torch.stack([torch.nn.functional.pad(wire, (0, width - wire.numel())) for wire in wires])

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        for message, row in zip(wire, out, strict=True):
            pairs = message.contiguous().view(torch.float32).view(-1, 2)
            row.index_add_(0, pairs[:, 0].long(), pairs[:, 1] * scale)

    def facts(self, n: int) -> Facts:
        return Facts(contraction=1.0)


def exchanged(method: Method[Any], xs: list[Tensor], **kwargs: Any) -> list[Any]:
    peers = [Peer(r, len(xs), name="w", lent=Lent(**kwargs)) for r in range(len(xs))]
    return simulate([method.exchange(x.clone(), method.init(x), p) for x, p in zip(xs, peers, strict=True)])


# ---- compositions ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("compressor", [grace.TopK(), grace.QSGD(), grace.SignSGD(), grace.EFSignSGD(), NonZeros()])
def test_allreduce_refuses_what_cannot_be_summed(compressor: Compressor):
    with pytest.raises(CompositionError, match="cannot be summed; use Allgather") as raised:
        Allreduce(compressor)
    assert type(compressor).__name__ in str(raised.value)


@pytest.mark.parametrize("compressor", [grace.Identity(), grace.FP16(), grace.BF16(), grace.RandomK()])
def test_allreduce_takes_what_can_be_summed(compressor: Compressor):
    assert Allreduce(compressor).compressor is compressor


@pytest.mark.parametrize("communicator", [ScatterReduce, ParameterServer])
def test_a_vote_is_not_an_average(communicator: Callable[[Compressor], Method[Any]]):
    with pytest.raises(CompositionError, match="decided by a majority; use Allgather"):
        communicator(grace.SignSGD())


@pytest.mark.parametrize("communicator", ALL)
@pytest.mark.parametrize("wrong", ["topk", None, grace.TopK, Allgather(grace.TopK())])
def test_a_communicator_takes_a_compressor(communicator: Callable[[Any], Method[Any]], wrong: object):
    with pytest.raises(CompositionError, match="takes a Compressor"):
        communicator(wrong)


@pytest.mark.parametrize("server", [-1, 1.5, "0", None])
def test_a_server_is_a_rank(server: Any):
    with pytest.raises(ConfigurationError, match=r"is not a rank; legal: 0 to W-1"):
        ParameterServer(grace.TopK(), server)


def test_a_server_is_one_of_the_workers():
    with pytest.raises(ConfigurationError, match="server=3 is not a rank; legal: 0 to 1"):
        exchanged(ParameterServer(grace.TopK(), 3), [torch.ones(4), torch.ones(4)])


@pytest.mark.parametrize("cast", [grace.FP16(), grace.BF16()])
def test_a_memory_does_not_see_what_the_network_rounds(cast: Compressor):
    with pytest.raises(CompositionError, match="use ScatterReduce"):
        grace.ErrorFeedback(Allreduce(cast))
    assert grace.ErrorFeedback(ScatterReduce(cast)).method == ScatterReduce(cast)


# ---- sizes that differ ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("communicator", RAGGED)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 4, 13, 30])
def test_ragged_wires(communicator: Callable[[Compressor], Method[Any]], world: int, n: int):
    """Rank r has r non-zeros: rank 0 sends nothing at all."""
    xs = [torch.where(torch.arange(n) < rank, 3.0 + torch.arange(n), 0.0) for rank in range(world)]
    for out in exchanged(communicator(NonZeros()), xs, keep_rest=True):
        torch.testing.assert_close(out.mean, torch.stack(xs).mean(0))
        assert not out.rest.any(), "the wire says everything, the second hop included"


@pytest.mark.parametrize("communicator", RAGGED)
def test_nothing_from_nobody(communicator: Callable[[Compressor], Method[Any]]):
    for out in exchanged(communicator(NonZeros()), [torch.zeros(6)] * 3):
        assert torch.equal(out.mean, torch.zeros(6))


@pytest.mark.parametrize("communicator", ALL)
@pytest.mark.parametrize("n", [1, 2, 7, 16, 17])
def test_chunks_are_padded_and_put_together(communicator: Callable[[Compressor], Method[Any]], n: int):
    """More workers than numbers, and numbers that workers do not divide."""
    xs = [torch.arange(1.0, n + 1) * (rank + 1) for rank in range(4)]
    for out in exchanged(communicator(grace.Identity()), xs):
        assert torch.equal(out.mean, torch.arange(1.0, n + 1) * 2.5)


@pytest.mark.parametrize("communicator", ALL)
def test_an_empty_tensor_asks_for_nothing(communicator: Callable[[Compressor], Method[Any]]):
    method = communicator(grace.Identity())
    x = torch.empty(0, 3)
    with pytest.raises(StopIteration) as stop:
        next(method.exchange(x, None, Peer(0, 2, lent=Lent(keep_rest=True))))
    assert stop.value.value.mean is x
    assert stop.value.value.rest is x
    assert method.traffic(x, Peer(0, 2)) == grace.Traffic()


def test_the_second_hop_of_scatterreduce_is_the_owners_debt():
    """Worked by hand: W=2, top-1 of each chunk of two; what rank 0 drops of its chunk's average counts twice."""
    xs = [torch.tensor([4.0, 1.0, 0.0, 2.0]), torch.tensor([1.0, 8.0, 6.0, 1.0])]
    first, second = exchanged(ScatterReduce(grace.TopK(ratio=0.5)), xs, keep_rest=True)
    # chunk 0: rank 0 sends 4 at position 0, rank 1 sends 8 at 1: average [2, 4], of which [0, 4] is sent again
    # chunk 1: rank 0 sends 2 at 3, rank 1 sends 6 at 2: average [3, 1], of which [3, 0] is sent again
    assert first.mean.tolist() == [0.0, 4.0, 3.0, 0.0]
    assert first.rest.tolist() == [0.0 + 2 * 2, 1.0, 0.0, 0.0]
    assert second.rest.tolist() == [1.0, 0.0, 0.0, 1.0 + 2 * 1]


def test_scaled_randomk_is_scaled_once():
    """The second hop has the same positions, and must not multiply by n/k again."""
    x = torch.arange(1.0, 21.0)
    alone = exchanged(Allreduce(grace.RandomK(ratio=0.2)), [x])[0].mean
    assert sorted(set((alone / x).tolist())) == [0.0, 5.0]
    server = exchanged(ParameterServer(grace.RandomK(ratio=0.2)), [x, x, x])[0].mean
    torch.testing.assert_close(server, alone)


def test_casts_divide_before_they_are_narrow():
    """W=8, one worker has 70,000: the sum of halves does not overflow."""
    xs = [torch.full((3,), 70_000.0 if rank == 5 else 0.0) for rank in range(8)]
    assert exchanged(Allreduce(grace.FP16()), xs)[0].mean.tolist() == [8752.0] * 3  # 8750, rounded to half


def test_the_baseline_sums_in_the_gradients_own_dtype():
    method = Allreduce(grace.Identity())
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        op = next(method.exchange(torch.ones(4, dtype=dtype), None, Peer(0, 2)))
        assert op.buf.dtype == dtype
        assert method.traffic(torch.ones(4, dtype=dtype), Peer(0, 2)).sent == 4 * dtype.itemsize


# ---- answers that no peer sends -------------------------------------------------------------------------------------
@pytest.mark.parametrize("widths", [[-1, 3], [5, 10_000], [2**62, 0]])
def test_widths_are_checked(widths: list[int]):
    with pytest.raises(PayloadError, match=r"field 'width' of rank \d"):
        check_widths(torch.tensor(widths), 10)
    assert check_widths(torch.tensor([0, 64 * 10 + 4096]), 10) == [0, 4736]


def test_a_peer_that_lies_about_its_width():
    """Rank 1 announces fewer bytes than its wire has: the wire is refused, not read beyond its end."""
    method = Allgather(grace.Threshold(v=0.5))
    run = method.exchange(torch.arange(9.0), None, Peer(0, 2))
    own = next(run).buf
    op = run.send(torch.stack([own, torch.tensor([7])]))
    with pytest.raises(PayloadError, match=r"'(count|values|indices)'|bytes"):
        run.send(answers([op, op])[0])


def test_a_width_of_ones_own_that_comes_back_changed_is_refused():
    run = Allgather(grace.Threshold(v=0.5)).exchange(torch.arange(9.0), None, Peer(0, 2))
    own = next(run).buf
    with pytest.raises(PayloadError, match="'width' of rank 0, this one"):
        run.send(torch.stack([own - 1, own]))


@pytest.mark.parametrize("communicator", [Allgather, Broadcasts])
@pytest.mark.parametrize("byte", [0, 2])
def test_a_spoiled_header_is_refused(communicator: Callable[[Compressor], Method[Any]], byte: int):
    run = communicator(grace.TopK(ratio=0.5)).exchange(torch.arange(4.0), None, Peer(0, 1))
    answer = answers([next(run)])[0].clone()
    answer.view(-1)[byte] = 9
    with pytest.raises(PayloadError, match="step 2304" if byte else "status"):
        run.send(answer)


@pytest.mark.parametrize("communicator", ALL)
def test_a_nan_stays_nan_and_sizes_stay_as_declared(communicator: Callable[[Compressor], Method[Any]]):
    compressor = grace.RandomK(ratio=0.5) if communicator is Allreduce else grace.TopK(ratio=0.5)
    xs = [torch.ones(6), torch.full((6,), math.nan), torch.ones(6)]
    for out in exchanged(communicator(compressor), xs):
        assert not out.finite
        assert bool(out.mean.isnan().all())
        assert out.rest is None


@pytest.mark.parametrize("spec", ["topk:memory=none", "topk", "threshold:v=0.5,memory=none", "qsgd", "signsgd"])
@pytest.mark.parametrize("communicator", ["allgather", "broadcast", "scatterreduce", "parameterserver"])
@pytest.mark.parametrize("late", [0, 1, 2])
def test_ranks_that_are_one_step_apart_are_noticed(spec: str, communicator: str, late: int):
    if spec == "signsgd" and communicator in ("scatterreduce", "parameterserver"):
        pytest.skip("a vote is no average")
    method = grace.method(f"{spec}{',' if ':' in spec else ':'}communicator={communicator}")
    peers = [Peer(r, 3, 40 - (r == late), "w") for r in range(3)]
    with pytest.raises(StepMismatch, match="make the same steps") as caught:
        simulate([method.exchange(torch.ones(8), method.init(torch.ones(8)), p) for p in peers])
    assert "step 39" in str(caught.value)
    assert "step 40" in str(caught.value)


def test_facts_of_what_is_compressed_twice():
    like = torch.empty(100)
    once, twice = Allgather(grace.QSGD()).facts(like), ScatterReduce(grace.QSGD()).facts(like)
    assert once.variance is not None
    assert (twice.unbiased, twice.variance, twice.contraction, twice.payload) == (True, None, None, None)
    assert ParameterServer(grace.Identity()).facts(like).variance == 0.0


def test_sealed_wires_are_not_allocated_afresh_at_each_step():
    class Alone:
        rank, world = 0, 1

        def run(self, op):
            return op.buf[None]

    worker, x = Worker(Policy([("*", "qsgd:bits=8,bucket=1024,memory=none")]), 0, 1), torch.randn(100_000)

    def exchange():
        mean = drive(worker.exchange({"weight": x.clone()}), Alone())["weight"].mean
        assert (mean - x).abs().max() < 0.1
        worker.workspace.reset()
        worker.advance()

    for _ in range(3):
        exchange()
    wire = grace.method("qsgd:bits=8,bucket=1024,memory=none").facts(x).payload
    assert [size for size in list_allocations(exchange) if wire <= size < 4 * x.numel()] == [wire]
