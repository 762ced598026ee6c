"""The warm-up of local steps, in real processes: synchronous training, and post-local SGD as torch has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grace.adapters.outer.door import local
from grace.errors import ConfigurationError, GraceError, InputError
from tests.distributed.processes import Pool
from tests.distributed.test_local_steps import alike, model, of_all, sgd, step, train, weights

OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.02),
}
WARMUP, EVERY, STEPS = 4, 3, 11


def held(optimizer: torch.optim.Optimizer) -> Tensor:
    states = [x for s in optimizer.state.values() for x in s.values() if isinstance(x, Tensor)]
    return torch.cat([x.flatten() for x in states])


def synchronous(rank: int, world: int, name: str, method: str) -> None:
    """Parameters and the optimizer's state are those of DistributedDataParallel, whatever the method is."""
    net, plain = model(rank), model(0)
    optimizer, other = OPTIMIZERS[name](net.parameters()), OPTIMIZERS[name](plain.parameters())
    handle = local(net, optimizer, method, every=EVERY, warmup_steps=WARMUP, check_replicas_every=2)
    wrapped = DistributedDataParallel(plain)
    for index in range(WARMUP):
        step(net, optimizer, rank, index)
        step(wrapped, other, rank, index)
        assert handle.synchronized
        assert handle.warms_up == (index + 1 < WARMUP)
        torch.testing.assert_close(weights(net), weights(plain), atol=1e-6 if world > 2 else 0, rtol=0)
        torch.testing.assert_close(held(optimizer), held(other), atol=1e-6 if world > 2 else 0, rtol=0)
    assert all(torch.equal(held(optimizer), x) for x in of_all(held(optimizer), world))
    assert alike(net, world)
    step(net, optimizer, rank, WARMUP)
    assert not handle.synchronized
    assert not alike(net, world), "the first local step"
    handle.detach()


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_warm_up_is_synchronous_training(pool: Pool, name: str) -> None:
    pool.run(synchronous, name, "topk:ratio=0.05")


def post_local(rank: int, world: int, name: str) -> float:
    """Largest distance of parameters from torch's post-local SGD, after a warm-up and some windows."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    plain = model()
    wrapped = DistributedDataParallel(plain)
    wrapped.register_comm_hook(PostLocalSGDState(dist.group.WORLD, None, WARMUP, False), post_localSGD_hook)
    averager = PeriodicModelAverager(period=EVERY, warmup_steps=WARMUP)
    train(wrapped, PostLocalSGDOptimizer(OPTIMIZERS[name](plain.parameters()), averager), rank, range(STEPS))
    net = model()
    optimizer = OPTIMIZERS[name](net.parameters())
    handle = local(net, optimizer, "none", every=EVERY, warmup_steps=WARMUP)
    for index in range(STEPS):
        step(net, optimizer, rank, index)
        if index == WARMUP:  # torch's first window has one step
            handle.sync()
    handle.detach()
    return float((weights(net) - weights(plain)).abs().max())


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_it_is_the_post_local_sgd_of_torch(pair: Pool, name: str) -> None:
    assert max(pair.run(post_local, name)) < 2e-6


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x: Tensor, heads: tuple[int, ...]) -> Tensor:
        return sum((self.heads[k](x) for k in heads), torch.zeros(()))


def unused(rank: int, world: int) -> None:
    torch.manual_seed(3)
    net = Heads()
    optimizer = OPTIMIZERS["adamw"](net.parameters())
    handle = local(net, optimizer, "none", every=2, warmup_steps=3)
    before = weights(net.heads[2])
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(1, 6), (0, 1) if rank == 0 else (0,)).sum().backward()
        optimizer.step()
        assert net.heads[2].weight.grad is None, "nobody used it"
        assert torch.equal(net.heads[1].weight.grad, torch.full((6, 6), 1 / world)), "one rank used it"
    assert torch.equal(weights(net.heads[2]), before)
    assert alike(net, world)
    handle.detach()


def spoiled(rank: int, world: int) -> None:
    net = model()
    optimizer = OPTIMIZERS["adamw"](net.parameters())
    handle = local(net, optimizer, "none", every=2, warmup_steps=4)
    step(net, optimizer, rank, 0)
    before = net.get_parameter("0.weight").detach().clone()
    step(net, optimizer, rank, 1, poison="0.weight" if rank == 1 else "")
    assert torch.equal(net.get_parameter("0.weight"), before)
    assert handle.stats.nonfinite == 1
    step(net, optimizer, rank, 2)
    assert bool(weights(net).isfinite().all())
    assert alike(net, world)
    handle.detach()


def by_hand(rank: int, world: int) -> None:
    """``automatic=False``: gradients are averaged before they are clipped; a step without that is an error."""
    net, plain = model(), model()
    optimizer, other = sgd(net, momentum=0.9), sgd(plain, momentum=0.9)
    handle, wrapped = (
        local(net, optimizer, "none", every=2, warmup_steps=2, automatic=False),
        DistributedDataParallel(plain),
    )
    for index in range(2):
        for module, trains in ((net, optimizer), (wrapped, other)):
            trains.zero_grad()
            made = torch.Generator().manual_seed(1000 * index + rank)
            module(torch.randn(8, 30, generator=made)).square().mean().backward()
            if module is net:
                handle.average_gradients()
                handle.average_gradients()  # once in a step
            nn.utils.clip_grad_norm_(module.parameters(), 0.01)
            trains.step()
        handle.step()
        torch.testing.assert_close(weights(net), weights(plain), atol=1e-7, rtol=0)
    handle.detach()
    handle = local(net, optimizer, "none", every=2, warmup_steps=2)
    with pytest.raises(ConfigurationError, match=r"step\(closure\) in the warm-up"):
        optimizer.step(lambda: torch.zeros(()))
    net[0].weight.grad = torch.zeros(48, 30).to_sparse()
    with pytest.raises(InputError, match=r"'0\.weight' is torch\.sparse_coo"):
        optimizer.step()
    handle.detach()


def forgotten(rank: int, world: int) -> None:
    net = model()
    optimizer = sgd(net)
    handle = local(net, optimizer, "none", every=2, warmup_steps=2, automatic=False)
    step(net, optimizer, rank, 0)
    with pytest.raises(GraceError, match=r"step 1 of a warm-up of 2 .* call handle\.average_gradients\(\)"):
        handle.step()
    handle.detach()


def test_what_is_unused_or_not_finite_in_a_warm_up(pair: Pool) -> None:
    pair.run(unused)
    pair.run(spoiled)


def test_gradients_may_be_averaged_by_hand(pair: Pool) -> None:
    pair.run(by_hand)
    pair.run(forgotten)
