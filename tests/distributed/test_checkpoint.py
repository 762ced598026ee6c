"""Checkpoints through torch.distributed.checkpoint, in real processes, on other numbers of workers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.errors import StateError
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import Pool
from tests.distributed.test_ddp import Net, train, weights


@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    pool = Pool(4)
    yield pool
    pool.close()


def on(ranks: int, spec: str) -> tuple[DistributedDataParallel, grace.Handle]:
    """A model and Grace on the first ranks; all ranks call it, the others get the same on all of them."""
    group, own = dist.new_group(list(range(ranks))), dist.new_group(list(range(ranks)))
    if dist.get_rank() >= ranks:
        return None, None  # type: ignore[return-value]
    torch.manual_seed(7)
    net = DistributedDataParallel(Net(), bucket_cap_mb=0.03, process_group=group)
    return net, grace.attach(net, spec, transport=TorchDistributed(own))


def mean_debt(handle: grace.Handle, group: Any, ranks: int) -> dict[str, Tensor]:
    out = {name: x.clone() for name, x in handle._session.worker.state.debts().items()}
    for name in sorted(out):
        dist.all_reduce(out[name], group=group)
        out[name] /= ranks
    return out


def changing(rank: int, world: int, spec: str, old: int, new: int, memories: Any, place: str) -> None:
    net, handle = on(old, spec)
    expected: dict[str, Tensor] = {}
    if handle is not None:
        train(net, rank, range(3))
        dcp.save({"grace": handle.checkpoint(memories)}, checkpoint_id=place, process_group=net.process_group)
        expected = mean_debt(handle, net.process_group, old)
        assert any(bool(x.any()) for x in expected.values()), "something should be owed here"
        then = {k: v.clone() for k, v in net.state_dict().items()}
        train(net, rank, range(3, 5))
        straight = weights(net)
        handle.detach()
    shared = [expected]
    dist.broadcast_object_list(shared, 0)
    net, handle = on(new, spec)
    if handle is not None:
        workers = old if memories == "all" else None
        dcp.load({"grace": handle.checkpoint(memories, workers)}, checkpoint_id=place, process_group=net.process_group)
        for name, debt in mean_debt(handle, net.process_group, new).items():
            torch.testing.assert_close(debt, shared[0][name], atol=1e-6, rtol=1e-6)
        assert handle.state_dict()["step"] == 3
        if old == new and memories == "all":
            net.load_state_dict(then)
            train(net, rank, range(3, 5))
            assert torch.equal(weights(net), straight)
        train(net, rank, range(5, 6))
        handle.detach()
    dist.barrier()


@pytest.mark.parametrize("memories", ["mean", "all"])
@pytest.mark.parametrize(("old", "new"), [(3, 2), (3, 4), (4, 1), (2, 2)])
def test_a_run_goes_on_with_other_workers(four: Pool, tmp_path: Path, old: int, new: int, memories: str) -> None:
    four.run(changing, "topk:ratio=0.05", old, new, memories, str(tmp_path / "checkpoint"))


def trap(rank: int, world: int, place: str) -> str:
    """A handle's own state is one rank's: through a file of replicas no rank may take another's for its own."""
    torch.manual_seed(7)
    net = DistributedDataParallel(Net(), bucket_cap_mb=0.03)
    handle = grace.attach(net, "topk:ratio=0.05")
    train(net, rank, range(2))
    dcp.save({"grace": dict(handle.state_dict())}, checkpoint_id=place)  # a copy is not refused when it is saved
    state = {"grace": dict(handle.state_dict())}
    dcp.load(state, checkpoint_id=place)
    with pytest.raises(StateError) as caught:
        handle.load_state_dict(state["grace"])
    handle.detach()
    return str(caught.value)


def test_a_plain_state_does_not_pass_through_as_another_ranks(pair: Pool, tmp_path: Path) -> None:
    messages = pair.run(trap, str(tmp_path / "checkpoint"))
    assert any("rank" in message for message in messages)


def handles(rank: int, world: int, place: str) -> None:
    """A handle, or its state, would keep one rank's memory, whoever asks for it."""
    net = DistributedDataParallel(Net())
    handle = grace.attach(net, "topk:ratio=0.1")
    train(net, rank, range(1))
    with pytest.raises(Exception, match=r"save and load handle\.checkpoint\(\)"):
        dcp.save({"grace": handle}, checkpoint_id=place)
    optimizer = torch.optim.SGD(net.parameters())
    for state in ({"grace": handle.state_dict()}, {"optimizer": optimizer.state_dict(), "more": [handle.state_dict()]}):
        with pytest.raises(dcp.CheckpointException, match=r"save and load handle\.checkpoint\(\)"):
            dcp.save(state, checkpoint_id=place)
    assert handle.state_dict()["rank"] == rank
    file = io.BytesIO()
    torch.save(handle.state_dict(), file)
    handle.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    handle.detach()


def test_a_handle_is_refused_when_it_is_saved(pair: Pool, tmp_path: Path) -> None:
    pair.run(handles, str(tmp_path))
