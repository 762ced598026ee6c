"""Outer loops in real processes: over gloo, beside training, and between workers that are sharded."""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

import grace
from grace.errors import ConfigurationError, FingerprintMismatch, InputError, StateError
from tests.distributed.processes import Pool, fork
from tests.distributed.test_local_steps import alike, model, of_all, sgd, step, train, weights

fsdp = pytest.importorskip("torch.distributed.fsdp")
TOPK = grace.Policy([("*", "topk:ratio=0.05")])
STREAMING = {"preset": "streaming_diloco:every=6,fragments=2,delay=2"}


def theta(loop: grace.OuterLoop) -> Tensor:
    return torch.cat([x.flatten() for x in loop.state_dict()["reference"].values()])


# ---- one rank a worker ----------------------------------------------------------------------------------------------
def beside_training(rank: int, world: int) -> dict[str, Any]:
    net = model(rank)
    inner = sgd(net, momentum=0.9)
    loop = grace.outer(net, inner, TOPK, **STREAMING, check=True, check_replicas_every=2)
    for index in range(12):
        step(net, inner, rank, index)
        held = theta(loop)
        assert all(torch.equal(held, other) for other in of_all(held, world))
    assert not loop.synchronized
    loop.sync()
    assert loop.synchronized
    assert alike(net, world)
    loop.detach()
    return loop.stats.as_dict()


def test_an_exchange_runs_beside_training(pair: Pool) -> None:
    for stats in pair.run(beside_training):
        assert stats["steps"] == 12
        assert stats["rounds_per_step"] > 0


DIES = """
import os, sys, time
import torch
import torch.distributed as dist
import grace

dist.init_process_group("gloo")
rank = dist.get_rank()
net = torch.nn.Sequential(torch.nn.Linear(30, 48), torch.nn.Linear(48, 5))
inner = torch.optim.SGD(net.parameters(), lr=0.1)
loop = grace.outer(net, inner, "streaming_diloco:every=6,fragments=2,delay=2")
for index in range(60):
    inner.zero_grad()
    net(torch.ones(2, 30)).sum().backward()
    if rank == 1 and index == int(sys.argv[1]):
        os._exit(0)
    start = time.monotonic()
    try:
        inner.step()
    except grace.GraceError as error:
        print("told:", type(error).__name__, time.monotonic() - start < 30, loop.error is error, flush=True)
        os._exit(0)
"""


@pytest.mark.parametrize("step_of_death", [1, 7])
def test_a_worker_that_dies_within_a_window_is_told(tmp_path: Path, step_of_death: int) -> None:
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    ended = fork(script, str(step_of_death), workers=2)
    assert "told: TransportError True True" in ended[0][1], ended[0][1]


def elsewhere(rank: int, world: int, place: str) -> None:
    """Two workers save theta, momentum and debts, and one goes on with them."""
    group = dist.new_group([0, 1])
    net = model(rank)
    inner = sgd(net)
    loop = grace.outer(net, inner, TOPK, preset="diloco:every=3", group=group)
    train(net, inner, rank, range(4))
    with pytest.raises(StateError, match=r"step 1 of a window of 3; call handle\.sync\(\)"):
        loop.checkpoint()
    loop.sync()
    state = loop.state_dict()
    dcp.save({"loop": loop.checkpoint()}, checkpoint_id=place, process_group=group)
    debts = loop._session.worker.state.debts()
    owed = {name: torch.stack(of_all(x, world)).mean(0) for name, x in sorted(debts.items())}
    loop.detach()
    if rank == 0:
        net = model(5)
        alone = grace.outer(net, sgd(net), TOPK, preset="diloco:every=3", transport="alone")
        saved = alone.checkpoint().state_dict()
        with pytest.raises(StateError, match="lacks momentum"):
            alone.checkpoint().load_state_dict({key: x for key, x in saved.items() if key != "momentum"})
        dcp.load({"loop": alone.checkpoint()}, checkpoint_id=place, no_dist=True)
        again = alone.state_dict()
        for key in ("reference", "momentum"):
            assert all(torch.equal(x, again[key][name]) for name, x in state[key].items()), key
            assert any(bool(x.any()) for x in again[key].values())
        for name, x in alone._session.worker.state.debts().items():
            torch.testing.assert_close(x, owed[name], atol=1e-6, rtol=1e-6)
        assert torch.equal(weights(net), theta(alone))
        alone.detach()


def test_a_checkpoint_goes_on_with_other_workers(pair: Pool, tmp_path: Path) -> None:
    pair.run(elsewhere, str(tmp_path / "checkpoint"))


# ---- workers of several ranks ---------------------------------------------------------------------------------------
@functools.cache  # a mesh's groups stay
def mesh_of(workers: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (workers, dist.get_world_size() // workers), mesh_dim_names=("worker", "shard"))


def island(seed: int, workers: int = 2) -> nn.Module:
    """Rows that the ranks do not divide, and a parameter with fewer rows than ranks, which an evaluation leaves gathered."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(30, 47), nn.Tanh(), nn.Linear(47, 1))
    for part in (net[0], net):
        fsdp.fully_shard(part, mesh=mesh_of(workers)["shard"], reshard_after_forward=False)
    return net


def begin(net: nn.Module, inner: torch.optim.Optimizer, method: Any = TOPK, workers: int = 2, **knobs: Any) -> Any:
    return grace.outer(net, inner, method, group=mesh_of(workers)["worker"].get_group(), **knobs)


def steps(net: nn.Module, inner: torch.optim.Optimizer, rank: int, numbers: range, poison: int = -1) -> None:
    for index in numbers:
        draw = torch.Generator().manual_seed(1000 * index + rank)
        x = torch.randn(8, 30, generator=draw)
        inner.zero_grad()
        nn.functional.mse_loss(net(x), x.sum(1, keepdim=True).tanh()).backward()
        if index == poison and rank == 3:
            net[0].weight.grad.to_local()[0, 0] = float("nan")
        inner.step()


def parts(net: nn.Module) -> Tensor:
    return torch.cat([p.to_local().detach().flatten() for p in net.parameters()])


def full(tensors: Any) -> list[Tensor]:
    return [p.full_tensor().detach().clone() for p in tensors]


def of_other_worker(x: Tensor) -> Tensor:
    rows = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(rows, x, group=mesh_of(2)["worker"].get_group())
    return rows[1 - dist.get_rank() // 2]


def as_one_rank_each(rank: int, world: int) -> None:
    """Two workers of two ranks are two workers of one rank with the mean of the two gradients."""
    net = island(1 + rank // 2)
    inner = sgd(net, momentum=0.9)
    loop = begin(net, inner, "none", preset="diloco:every=2", lr=0.5)
    plain = model = nn.Sequential(nn.Linear(30, 47), nn.Tanh(), nn.Linear(47, 1))
    with torch.no_grad():
        for p, q in zip(model.parameters(), full(net.parameters()), strict=True):
            p.copy_(q)
    other = sgd(model, momentum=0.9)
    rest = grace.outer(model, other, "none", preset="diloco:every=2", lr=0.5, group=mesh_of(2)["worker"].get_group())
    for index in range(6):
        steps(net, inner, rank, range(index, index + 1))
        other.zero_grad()
        for mate in (rank // 2 * 2, rank // 2 * 2 + 1):
            x = torch.randn(8, 30, generator=torch.Generator().manual_seed(1000 * index + mate))
            (nn.functional.mse_loss(plain(x), x.sum(1, keepdim=True).tanh()) / 2).backward()
        other.step()
        for p, q in zip(full(net.parameters()), plain.parameters(), strict=True):
            torch.testing.assert_close(p, q.detach(), atol=1e-6, rtol=1e-5)
        assert torch.equal(parts(net), of_other_worker(parts(net))) == (index % 2 == 1)
    loop.detach()
    rest.detach()


def sharded(rank: int, world: int, place: str) -> None:
    """Overlap, a stop, a NaN in one shard, and a checkpoint that goes on in one worker of four ranks."""
    straight = island(3)
    inner = sgd(straight, momentum=0.9)
    loop = begin(straight, inner, **STREAMING)
    steps(straight, inner, rank, range(13))
    loop.detach()

    net = island(3)
    inner = sgd(net, momentum=0.9)
    loop = begin(net, inner, **STREAMING)
    steps(net, inner, rank, range(5))
    file = io.BytesIO()
    torch.save({"parts": [p.to_local() for p in inner_state(inner)], "loop": loop.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert saved["loop"]["flight"]
    with loop.shared_model() as shared, torch.no_grad():
        value = shared(torch.ones(1, 30))
    steps(net, inner, rank, range(5, 7))
    with torch.no_grad():
        assert not torch.equal(net(torch.ones(1, 30)), value)
    loop.load_state_dict(saved["loop"])
    for x, kept in zip(inner_state(inner), saved["parts"], strict=True):
        x.to_local().copy_(kept)
    steps(net, inner, rank, range(5, 13))
    assert torch.equal(parts(net), parts(straight))

    before = loop.state_dict()
    steps(net, inner, rank, range(13, 18), poison=14)
    assert bool(theta(loop).isfinite().all())
    assert bool(parts(net).isfinite().all()), "the optimizer's state, too"
    count = loop.stats.nonfinite
    steps(net, inner, rank, range(18, 24))
    assert loop.stats.nonfinite == count
    assert loop.stats.nonfinite > 0
    assert not torch.equal(theta(loop), torch.cat([x.flatten() for x in before["reference"].values()]))

    with pytest.raises(StateError, match=r"call handle\.sync\(\)"):
        loop.checkpoint()
    loop.sync()
    assert torch.equal(parts(net), of_other_worker(parts(net)))
    with pytest.raises(ConfigurationError, match="without arguments"):
        loop.checkpoint("all")
    dcp.save({"loop": loop.checkpoint()}, checkpoint_id=place)
    whole, momentum = full(net.parameters()), loop.checkpoint().state_dict()["momentum"]
    momentum = {name: x.full_tensor() for name, x in momentum.items()}
    owed = {name: x.full_tensor() for name, x in loop.checkpoint().state_dict()["owed"].items()}
    assert any(bool(x.any()) for x in owed.values())
    loop.detach()

    net = island(9, workers=1)
    worker = begin(net, sgd(net), workers=1, **STREAMING)
    dcp.load({"loop": (checkpoint := worker.checkpoint())}, checkpoint_id=place)
    assert all(torch.equal(p, q) for p, q in zip(full(net.parameters()), whole, strict=True))
    again = checkpoint.state_dict()
    for name, x in momentum.items():
        assert torch.equal(x, again["momentum"][name].full_tensor())
        torch.testing.assert_close(again["owed"][name].full_tensor(), owed[name], atol=1e-6, rtol=1e-5)
    worker.detach()


def inner_state(inner: torch.optim.Optimizer) -> list[Any]:
    return [state["momentum_buffer"] for state in inner.state.values()]


def sharded_wrongly(rank: int, world: int) -> str:
    net = island(1)
    inner = sgd(net)
    with pytest.raises(ConfigurationError, match=r"the model is sharded: group= says.*mesh\['worker'\]\.get_group\(\)"):
        grace.outer(net, inner, "none", every=2)
    with pytest.raises(ConfigurationError, match="have shards of the same worker's model"):
        grace.outer(net, inner, "none", every=2, group=mesh_of(2)["shard"].get_group())
    with pytest.raises(ConfigurationError, match="warmup_steps=0"):
        begin(net, inner, "none", every=2, warmup_steps=1)
    with pytest.raises(FingerprintMismatch, match="the ranks of a worker are configured differently"):
        begin(net, inner, "none", every=2 + rank % 2)
    with pytest.raises(FingerprintMismatch) as caught:
        begin(net, inner, "none", every=3 if rank == 2 else 2)
    return str(caught.value)


def shard_fails(rank: int, world: int, delay: int, where: str) -> tuple[str, bool, bool]:
    """The exchange of rank 1's shard fails on one worker, or before it begins; its peer has the other shard, and would wait
    for it.
    """
    net = island(1)
    inner = sgd(net)
    loop = begin(net, inner, "none", preset="diloco:every=3", delay=delay)
    steps(net, inner, rank, range(3))
    held = theta(loop)
    if rank == 1:
        setattr(*{"exchange": (loop, "_exchange"), "launch": (loop._state, "delta")}[where], fails)
    start = time.monotonic()
    try:
        steps(net, inner, rank, range(3, 6))
    except grace.GraceError as error:
        unmoved = torch.equal(theta(loop), held)
        return f"{type(error).__name__}: {error.args[0]}", unmoved, time.monotonic() - start < 60
    finally:
        loop.detach()
    return "went on", False, True


def fails(*_: Any) -> Any:
    raise InputError("a defect of one shard")


@pytest.mark.parametrize(("delay", "where"), [(0, "exchange"), (1, "exchange"), (0, "launch"), (1, "launch")])
def test_an_exchange_that_fails_on_one_shard_is_told_to_the_whole_worker_at_once(delay: int, where: str) -> None:
    pool = Pool(4)
    try:
        told = pool.run(shard_fails, delay, where)
    finally:
        pool.close()
    for text, unmoved, soon in told[:2]:
        assert text == (
            "TransportError: the exchange of shard 1 of this worker has failed, and so the worker ends: "
            "InputError: a defect of one shard"
        )
        assert unmoved
        assert soon
    assert told[3][0].startswith("TransportError"), "its partner in the other worker"
    assert told[2][0] == told[3][0].replace("shard 0", "shard 1") or told[2][0].startswith("TransportError")


def test_a_worker_may_be_several_ranks(pools: Callable[[str, int], Any]) -> None:
    pools("gloo", 4).run(as_one_rank_each)


def test_sharded_workers_stop_and_go_on(pools: Callable[[str, int], Any], tmp_path: Path) -> None:
    pools("gloo", 4).run(sharded, str(tmp_path / "checkpoint"))


def test_one_rank_of_a_sharded_worker_that_differs_is_told_to_all(pools: Callable[[str, int], Any]) -> None:
    assert all("every" in message for message in pools("gloo", 4).run(sharded_wrongly))
