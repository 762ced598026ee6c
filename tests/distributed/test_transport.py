"""torch.distributed over gloo gives what the simulator gives, and refuses what would poison the group."""

from __future__ import annotations

import pytest
import torch

from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Permute, ReduceScatter
from grace.errors import FingerprintMismatch, RoundMismatch, TransportError
from grace.run.simulate import answers
from grace.transports.agreement import agree
from grace.transports.checked import Checked
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import Pool

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64)


def ops_of(rank: int, world: int, dtype: torch.dtype) -> list[Collective]:
    """Every collective, with small whole numbers that sum exactly in every dtype."""
    x = (torch.arange(6) + rank).to(dtype).view(2, 3)
    rows = (torch.arange(world * 4) * (rank + 1)).remainder(11).to(dtype).view(world, 4)
    ring = tuple((r, (r + 1) % world) for r in range(world))
    ops: list[Collective] = [
        AllReduce(x, "sum"), AllReduce(x, "max"), AllReduce(x.clone(), "sum", donate=True), AllGather(x), AllGather(x.t()),
        AllToAll(rows), ReduceScatter(rows, "sum"), ReduceScatter(rows, "max"), Broadcast(x, world - 1),
        Permute(x, ring), Permute(x, ((0, 1),)), AllGather(x[:0]), AllReduce(x[:0], "sum"),
    ]  # fmt: skip
    if dtype.is_floating_point:
        ops += [AllReduce(x * world, "mean"), ReduceScatter(rows * world, "mean")]
    return ops


def every_collective(rank: int, world: int) -> int:
    transport, checked = TorchDistributed(), 0
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
    return checked


def test_every_collective_in_every_dtype_as_simulated(pool: Pool) -> None:
    assert pool.run(every_collective) == [13 * len(DTYPES) + 8] * pool.world


def refusals(rank: int, world: int) -> None:
    transport = TorchDistributed()
    bad = [
        AllReduce(torch.ones(3, dtype=torch.int32), "mean"), AllReduce(torch.ones(3, dtype=torch.int16), "sum"),
        AllGather(torch.ones(3, dtype=torch.complex64)), AllToAll(torch.ones(world + 1, 2)),
        ReduceScatter(torch.ones(()), "sum"), Broadcast(torch.ones(2), world),
    ]  # fmt: skip
    for op in bad:
        if rank == 0:  # one rank alone: the others never hear of it
            with pytest.raises(TransportError, match="nothing was sent"):
                transport.run(op)
    assert transport.run(AllReduce(torch.ones(2), "sum")).tolist() == [world, world]


def test_what_gloo_would_refuse_is_refused_before_it_poisons_the_group(pool: Pool) -> None:
    pool.run(refusals)


def checked_mismatch(rank: int, world: int) -> str:
    transport = Checked(TorchDistributed())
    assert transport.run(AllReduce(torch.ones(2), "sum")).tolist() == [world, world]
    with pytest.raises(RoundMismatch) as caught:
        transport.run(AllGather(torch.ones(2)) if rank == 0 else AllGather(torch.ones(3)))
    assert transport.run(AllReduce(torch.ones(2), "sum")).tolist() == [world, world]
    return str(caught.value)


def test_checked_names_what_each_rank_asked_for(pool: Pool) -> None:
    for message in pool.run(checked_mismatch):
        assert "ranks [0]: collective 2: AllGather(float32, (2,))" in message
        assert "AllGather(float32, (3,))" in message


def late_rank(rank: int, world: int) -> str:
    transport = TorchDistributed.beside()
    if rank == world - 1:
        return "did not come"
    try:
        agree({"method": "topk"}, transport, seconds=1.0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "agreed"


def afterwards(rank: int, world: int) -> list[str]:
    transport = TorchDistributed.beside()
    texts = transport.tell(f"text {rank}", seconds=20.0)
    assert transport.run(AllReduce(torch.ones(2), "sum")).tolist() == [world, world]
    transport.close()
    with pytest.raises(TransportError, match="has left"):
        transport.run(AllReduce(torch.ones(2), "sum"))
    with pytest.raises(TransportError, match="has left"):
        transport.tell("x", seconds=1.0)
    return texts


def test_a_rank_that_never_attaches_is_named_and_may_come_later(pool: Pool) -> None:
    messages = pool.run(late_rank)
    for message in messages[:-1]:
        assert message.startswith(f"FingerprintMismatch: ranks [{pool.world - 1}] did not attach Grace within 1 s")
    assert pool.run(afterwards) == [[f"text {rank}" for rank in range(pool.world)]] * pool.world


def differing(rank: int, world: int) -> str:
    with pytest.raises(FingerprintMismatch) as caught:
        agree({"method": "topk" if rank else "qsgd"}, TorchDistributed.beside(), seconds=20.0)
    return str(caught.value)


def test_what_differs_is_told_on_every_rank(pool: Pool) -> None:
    for message in pool.run(differing):
        assert message.startswith("ranks are configured differently. method: qsgd on ranks [0], topk on ranks [1")


def before_the_first_tell(rank: int, world: int) -> None:
    with pytest.raises(TransportError, match="no group before its first tell"):
        TorchDistributed.beside().run(AllReduce(torch.ones(2), "sum"))


def test_a_group_of_its_own_needs_all_ranks(pair: Pool) -> None:
    pair.run(before_the_first_tell)
