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
from tests.distributed.ddp_models import Net, train, weights
from tests.distributed.processes import Pool


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


def saved_beside_training(rank: int, world: int, spec: str, place: str) -> str:
    """A save in the background has the state at its begin."""
    torch.manual_seed(7)
    net = DistributedDataParallel(Net(), bucket_cap_mb=0.03)
    handle = grace.attach(net, spec)
    train(net, rank, range(3))
    group = dist.new_group(list(range(world)))
    expected = mean_debt(handle, group, world)
    saving = dcp.async_save({"grace": handle.checkpoint()}, checkpoint_id=place, process_group=group)
    train(net, rank, range(3, 6))
    saving.result()
    handle.detach()
    net = DistributedDataParallel(Net(), bucket_cap_mb=0.03)
    handle = grace.attach(net, spec)
    checkpoint = handle.checkpoint()
    dcp.load({"grace": checkpoint}, checkpoint_id=place)
    for name, debt in mean_debt(handle, group, world).items():
        torch.testing.assert_close(debt, expected[name], atol=1e-6, rtol=1e-6)
    assert handle.state_dict()["step"] == 3
    handle.detach()
    return ", ".join(checkpoint.afresh)


def test_a_checkpoint_is_saved_beside_training(pair: Pool, tmp_path: Path) -> None:
    afresh = "none:memory=dgc, topk:memory=dgc"  # biases have the same momentum
    assert pair.run(saved_beside_training, "topk:memory=dgc", str(tmp_path / "checkpoint")) == [afresh] * 2


LOCAL_SHAPE = (40, 30)


def local_steps_elsewhere(rank: int, world: int, old: int, new: int, place: str, memories: Any) -> None:
    def begin(ranks: int) -> Any:
        group = dist.new_group(list(range(ranks)))
        if rank >= ranks:
            return None
        net = torch.nn.Linear(*LOCAL_SHAPE).bfloat16()  # x_ref is float32
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        handle = grace.local(net, optimizer, "topk:ratio=0.05", every=2, group=group)
        return net, optimizer, handle, group

    def go_on(made: Any, steps: int) -> None:
        net, optimizer, *_ = made
        for step in range(steps):
            optimizer.zero_grad()
            x = torch.randn(8, LOCAL_SHAPE[0], generator=torch.Generator().manual_seed(10 * step + rank))
            net(x.bfloat16()).square().sum().backward()
            optimizer.step()

    made, shared = begin(old), [None]
    if made is not None:
        net, _, handle, group = made
        go_on(made, 5)
        with pytest.raises(StateError, match=r"step 1 of a window of 2; call handle\.sync\(\)"):
            handle.checkpoint()
        handle.sync()
        dcp.save({"local": handle.checkpoint(memories)}, checkpoint_id=place, process_group=group)
        whole = [p.detach().clone() for p in net.parameters()]
        shared = [
            {"debt": mean_debt(handle, group, old), "weights": whole, "reference": handle.state_dict()["reference"]}
        ]
        handle.detach()
    dist.broadcast_object_list(shared, 0)
    made = begin(new)
    if made is not None:
        net, _, handle, group = made
        workers = old if memories == "all" else None
        right = handle.checkpoint(memories, workers).state_dict()
        for changed in ({**right, "reference": {}}, {**right, "window": b""}, {"about": right["about"]}):
            with pytest.raises(StateError):
                handle.checkpoint(memories, workers).load_state_dict(changed)
        dcp.load({"local": handle.checkpoint(memories, workers)}, checkpoint_id=place, process_group=group)
        assert bool(shared[0]["debt"]["weight"].any())
        for name, debt in mean_debt(handle, group, new).items():
            torch.testing.assert_close(debt, shared[0]["debt"][name], atol=1e-6, rtol=1e-6)
        for p, was in zip(net.parameters(), shared[0]["weights"], strict=True):
            assert torch.equal(p, was)
        state = handle.state_dict()
        assert all(torch.equal(x, shared[0]["reference"][name]) for name, x in state["reference"].items())
        assert (state["steps"], state["taken"]) == (5, 0)
        go_on(made, 2)
        handle.detach()
    dist.barrier()


@pytest.mark.parametrize(("old", "new", "memories"), [(4, 2, "mean"), (3, 4, "mean"), (2, 3, "all")])
def test_local_steps_go_on_with_other_workers(four: Pool, tmp_path: Path, old: int, new: int, memories: str) -> None:
    four.run(local_steps_elsewhere, old, new, str(tmp_path / "checkpoint"), memories)


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
    plain = torch.nn.Linear(40, 40)
    steps = grace.local(plain, torch.optim.SGD(plain.parameters(), lr=0.1), "topk:ratio=0.1", every=2)
    with pytest.raises(Exception, match=r"save and load handle\.checkpoint\(\)"):
        dcp.save({"local": steps}, checkpoint_id=place)
    steps.detach()
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
