"""Models under fully_shard with a method for each axis, and weights that travel in few bits: in real processes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import grace
from grace.collectives import ring_bytes
from grace.errors import CompositionError, ConfigurationError, GraceError, PayloadError
from grace.methods.fp8 import FP8
from grace.methods.lpc import LPC
from tests.distributed.processes import Pool
from tests.distributed.sharded_models import (
    Given,
    four,
    fsdp,
    full,
    fully_shard,
    gradients_of,
    make,
    mesh_of,
    pytestmark,
    shard,
    three,
    train,
)

__all__ = ["four", "pytestmark", "three"]


def conserve_axes(rank: int, world: int, slow: str, fast: str) -> None:
    """The sum of what is applied and owed is what the fast axis gave, which owes nothing and is off by its rounding."""
    net = Given()
    fully_shard(net, mesh=mesh_of("hsdp"))
    every = [grace.Policy([("*", spec)]) for spec in (slow, fast)]
    handle = grace.attach(net, replicate=every[0], shard=every[1])
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    for step in range(3):
        optimizer.zero_grad()
        net(gradients_of(rank, step)).backward()
        optimizer.step()
    owed = full(handle.checkpoint().state_dict()["owed"])
    assert handle.axes.keys() == {"replicate", "shard"}
    planned = 3 * handle.plan("shard").sent_bytes
    assert 0 < planned <= handle.axes["shard"].traffic.sent <= planned + 3 * 24, "what travels as one is aligned"
    assert handle.plan().sent_bytes > 0
    handle.detach()
    for name, p in net.named_parameters():
        computed = sum(gradients_of(r, step)[name] for r in range(world) for step in range(3)) / world
        off = (owed[name] - p.full_tensor() - computed).norm() / computed.norm()
        assert off < 0.05, (name, off)
        assert bool(owed[name].any()) == (slow != "none") or name == "short", "of one row powersgd owes nothing"
        assert off > 0, "the fast axis rounds"


# ---- weights --------------------------------------------------------------------------------------------------------
class Seen(nn.Module):
    """Notes the weight that it computes with, forward and backward."""

    def __init__(self, rows: int = 50):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, 32, generator=torch.Generator().manual_seed(3)))
        self.bias = nn.Parameter(torch.linspace(-1, 1, rows))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        note = self.seen

        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
                note.append(w.detach().clone())
                ctx.save_for_backward(x, w)
                return x @ w.t()

            @staticmethod
            def backward(ctx: Any, *grads: Tensor) -> Any:
                x, w = ctx.saved_tensors
                note.append(w.detach().clone())
                return grads[0] @ w, grads[0].t() @ x

        return Product.apply(x, self.weight) + self.bias


def computes_with(rank: int, world: int, kind: str, weights: str, mp: dict[str, Any] | None) -> None:
    net = Seen()
    fully_shard(net, mesh=mesh_of(kind), mp_policy=fsdp.MixedPrecisionPolicy(**(mp or {})))
    handle = grace.attach(net, "none", weights=weights)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    exact = []
    for step in range(3):
        exact.append(net.weight.full_tensor().detach().clone())
        bias = net.bias.full_tensor().detach()
        optimizer.zero_grad()
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * step + rank))
        net(x).float().square().sum().backward()
        net.unshard()
        torch.testing.assert_close(net.bias.detach().float(), bias, atol=0 if mp is None else 0.01, rtol=0)
        net.reshard()
        optimizer.step()
    assert len(net.seen) == 6
    for step in range(3):
        ahead, back = net.seen[2 * step : 2 * step + 2]
        assert torch.equal(ahead, back), "forward and backward pass"
        everyone = [torch.empty_like(ahead.float()) for _ in range(world)]
        dist.all_gather(everyone, ahead.float())
        assert all(torch.equal(result, everyone[0]) for result in everyone), "all ranks, the owner too"
        off = (ahead.float() - exact[step]).abs().max()
        assert 0 < off <= 0.5, off
    assert not torch.equal(exact[0], exact[1])
    moved = (exact[0] - exact[1]).abs().max()
    assert moved < 0.01, "the shard moves by less than a step of the grid"
    assert handle.axes["weights"].ratio > 1.5
    axes = handle.axes.values()
    dense = sum(ring_bytes(axis.dense_bytes, axis.world) for axis in axes)
    assert handle.stats.ratio == dense / sum(axis.traffic.sent for axis in axes)
    assert min(axis.ratio for axis in axes) < handle.stats.ratio < max(axis.ratio for axis in axes), "of all axes"
    handle.detach()
    net.unshard()
    truth = net.weight.detach().float().clone()
    net.reshard()
    torch.testing.assert_close(truth, net.weight.full_tensor().to(truth.dtype), atol=0 if mp is None else 0.02, rtol=0)


WEIGHTS = [
    ("fsdp", "int8", None),
    ("hsdp", "int4", None),
    ("fsdp", "lpc:bits=8,block=64", None),  # at random
    ("fsdp", "fp8", {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}),
]


@pytest.mark.parametrize(("kind", "weights", "mp"), WEIGHTS, ids=str)
def test_all_ranks_compute_with_the_same_weights_in_both_passes(four: Pool, kind: str, weights: str, mp: Any) -> None:
    four.run(computes_with, kind, weights, mp)


def kept_truth(rank: int, world: int) -> None:
    """The grid is of 0.1 (of a largest weight of 0.7, 3 bits and the sign): 0.3 and three updates of -0.02."""
    net = nn.Linear(2, 512, bias=False)
    with torch.no_grad():
        net.weight.fill_(0.3)[:, 0] = 0.7
    fully_shard(net)
    handle = grace.attach(net, "none", weights="int4")
    seen = []
    for _ in range(4):
        net.unshard()
        seen.append(float(net.weight.detach()[-1, 1]))
        net.reshard()
        with torch.no_grad():
            net.weight.to_local()[:, 1] -= 0.02
    assert seen == pytest.approx([0.3, 0.3, 0.3, 0.2]), "small updates add up in the shard"
    assert float(net.weight.full_tensor()[0, 1]) == pytest.approx(0.22)
    with torch.no_grad():
        net.weight.to_local()[:] *= torch.nan if rank == 1 else 1
    net.unshard()
    assert net.weight.detach().isnan().float().mean() == 1 / world, "of the rank that has them"
    handle.detach()


def test_the_shard_stays_the_truth(pair: Pool) -> None:
    pair.run(kept_truth)


def learns(rank: int, world: int, weights: str | None, options: dict[str, Any], steps: int = 6) -> float:
    options = dict(options)
    way = options.pop("way", "")
    net = make(**options)
    handle = grace.attach(net, "none", weights=weights)
    train(net, steps, way)
    made = torch.Generator().manual_seed(1)
    x = torch.randn(256, 32, generator=made)
    with torch.no_grad():
        loss = float(nn.functional.mse_loss(net(x).float(), x.sum(1, keepdim=True).tanh()))
    handle.detach()
    return loss


def test_with_weights_of_eight_bits_it_learns_as_well(three: Pool) -> None:
    alone = three.run(learns, None, {}, 25)[0]
    for weights in ("int8", "fp8"):
        results = three.run(learns, weights, {}, 25)
        assert len(set(results)) == 1
        assert results[0] <= 1.02 * alone


@pytest.mark.parametrize(
    "options",
    [
        {"reshard_after_forward": False},
        {"reshard_after_forward": 2, "kind": "fsdp"},
        {"way": "no sync"},
        {"mp": {"param_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16}, "kind": "hsdp"},
    ],
    ids=str,
)
def test_weights_in_other_ways_of_sharding(four: Pool, options: dict[str, Any]) -> None:
    results = four.run(learns, "int8", options)
    assert len(set(results)) == 1
    assert results[0] == pytest.approx(four.run(learns, None, options)[0], rel=0.1)


def recomputed(rank: int, world: int) -> None:
    """A forward pass that is made again in the backward pass has the weights that it had, rounded at random."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = nn.Sequential(checkpoint_wrapper(Seen(64)), nn.Linear(64, 32))
    for part in (*net, net):
        fully_shard(part)
    handle = grace.attach(net, "none", weights="lpc:bits=4")
    net(torch.randn(4, 32)).square().sum().backward()
    seen = net[0]._checkpoint_wrapped_module.seen
    assert len(seen) == 3, "forward, forward again, backward"
    assert all(torch.equal(x, seen[0]) for x in seen)
    net(torch.randn(4, 32))
    assert not torch.equal(seen[3], seen[0]), "after a backward pass others are drawn"
    handle.detach()


def test_what_is_computed_again_has_the_same_weights(pair: Pool) -> None:
    pair.run(recomputed)


def compiled(rank: int, world: int) -> None:
    ends = []
    for compiles in (False, True):
        torch.manual_seed(7)
        net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
        if compiles:
            net[0].compile(backend="aot_eager")
        shard(net)
        handle = grace.attach(net, "topk:ratio=0.1", weights="int8")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            net(torch.randn(8, 32, generator=torch.Generator().manual_seed(step + rank))).square().mean().backward()
            optimizer.step()
        ends.append(torch.cat([p.to_local().detach().flatten() for p in net.parameters()]))
        handle.detach()
    torch.testing.assert_close(*ends, atol=1e-6, rtol=1e-5)


def test_a_compiled_block_computes_with_the_weights_that_travelled(pair: Pool) -> None:
    pair.run(compiled)


# ---- a method for each axis -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("slow", "fast"), [("topk:ratio=0.05", "bf16"), ("none", "qsgd:bits=8"), ("powersgd", "fp8")])
def test_each_axis_has_its_method_and_the_slow_one_owes(four: Pool, slow: str, fast: str) -> None:
    four.run(conserve_axes, slow, fast)


def refused(rank: int, world: int) -> None:
    def says(text: str, kind: str = "fsdp", error: type[GraceError] = ConfigurationError, **given: Any) -> None:
        with pytest.raises(error, match=text):
            grace.attach(make(kind), **given)

    says("a mesh of two dimensions, replicas and shards", replicate="topk")
    says("are both for the slowest axis", method="topk", shard="bf16")
    says("are both for the slowest axis", "hsdp", method="topk", replicate="bf16")
    says("which method", method=None)
    says("keeps a memory; errors are fed back on the slow axis only", "hsdp", method="none", shard="topk:ratio=0.1")
    says("powersgd has an exchange of its own", "hsdp", method="none", shard="powersgd")
    for weights, text in (
        ("topk:memory=none", "leaves numbers out"),
        ("topk", "leaves numbers out"),  # and not: give it no memory
        ("efsignsgd", "has a memory"),
        ("powersgd:memory=none", "exchange of its own"),
        ("signsgd", "takes votes"),
        ("inceptionn", "vary in size"),
    ):
        says(text, error=CompositionError, method="none", weights=weights)
    net = make()
    net.first.set_custom_all_gather(mock.Mock(spec=object))
    with pytest.raises(ConfigurationError, match="has an all-gather of its own"):
        grace.attach(net, weights="int8")
    net = Given()
    net.wide.requires_grad_(False)
    net.wide.data = net.wide.data.double()
    fully_shard(net)
    with pytest.raises(ConfigurationError, match="gathered as float32, float64"):
        grace.attach(net, weights="int8")
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(32, 64))
    with pytest.raises(ConfigurationError, match="are for models under fully_shard"):
        grace.attach(ddp, "topk", weights="int8")
    with pytest.raises(ConfigurationError, match="which method"):
        grace.attach(ddp)
    net = make()
    handle = grace.attach(net, weights=FP8() if rank == 0 else "fp8")  # the same
    with pytest.raises(ConfigurationError, match="legal here: 'shard'"):
        handle.plan("replicate")
    handle.detach()
    with pytest.raises(GraceError):  # another on each rank
        grace.attach(make(), weights=LPC(bits=4 + rank))


def test_what_cannot_work_is_refused(pair: Pool) -> None:
    pair.run(refused)


def broken(rank: int, world: int) -> str:
    net = shard(nn.Sequential(nn.Linear(64, 64)))
    grace.attach(net, "none", weights="int8")
    with mock.patch.object(LPC, "decompress_add_", side_effect=PayloadError("too short") if rank == 1 else None):
        try:
            net(torch.randn(2, 64))
            net(torch.randn(2, 64))
        except GraceError as error:
            return type(error).__name__
    return ""


def test_a_worker_that_cannot_read_weights_tells_the_others(pair: Pool) -> None:
    results = pair.run(broken)
    pair.retire()
    assert results[1] == "PayloadError"
    assert results[0].endswith("Error")
