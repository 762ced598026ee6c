"""Models under fully_shard, in real processes: FSDP on three ranks, HSDP on two machines of two."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import grace
from grace.errors import ConfigurationError, InputError
from tests.distributed.processes import Pool
from tests.distributed.sharded_models import (
    Net,
    four,
    full,
    fully_shard,
    make,
    mesh_of,
    pytestmark,
    shard,
    three,
    train,
)

__all__ = ["four", "pytestmark", "three"]

BF16 = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16}
MIXED = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}


# ---- equality -------------------------------------------------------------------------------------------------------
def none_is_plain(rank: int, world: int, kind: str, way: str, options: dict[str, Any]) -> None:
    def prepare() -> nn.Module:
        if way == "checkpointing":
            from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

            torch.manual_seed(7)
            net = Net()
            net.hidden = checkpoint_wrapper(net.hidden)
            return shard(net, kind, **options)
        if way == "meta":
            with torch.device("meta"):
                net = Net()
            return shard(net, kind, **options)
        if way == "compile":
            torch.manual_seed(7)
            net = Net()
            net.hidden.compile(backend="aot_eager")
            return shard(net, kind, **options)
        return make(kind, **options)

    def start(net: nn.Module) -> Tensor:
        if way == "meta":  # attached before there are numbers
            net.to_empty(device="cpu")
            with torch.no_grad():
                for p in net.parameters():
                    own = p.to_local()
                    own.copy_(torch.linspace(-0.1, 0.1, own.numel()).view_as(own))
        if way == "divided":
            for part in (*net.children(), net):
                part.set_gradient_divide_factor(2.0)
                part.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        return train(net, 5, way)

    plain = start(prepare())
    attached = prepare()
    handle = grace.attach(attached, "none")
    ended = start(attached)
    assert torch.equal(plain, ended), f"off by {(plain - ended).abs().max():.3g}"
    assert handle.stats.steps == (10 if way == "accumulate" else 5)
    handle.detach()
    again = prepare()
    grace.attach(again, "topk:ratio=0.1").detach()
    assert torch.equal(plain, start(again)), "detached, it is as it was"


WAYS = [
    ("", {}), ("", {"reshard_after_forward": False}), ("", {"mp": BF16}), ("", {"mp": MIXED}),
    ("accumulate", {}), ("no sync", {}), ("checkpointing", {}), ("meta", {}), ("divided", {}),
    ("compile", {}),
]  # fmt: skip


@pytest.mark.parametrize(("way", "options"), WAYS, ids=str)
def test_none_is_plain_fsdp_to_the_bit(three: Pool, way: str, options: dict[str, Any]) -> None:
    three.run(none_is_plain, "fsdp", way, options)


@pytest.mark.tier("test")
def test_none_is_plain_fsdp_on_two(pair: Pool) -> None:
    pair.run(none_is_plain, "fsdp", "", {})


def test_none_is_plain_fsdp_on_four(four: Pool) -> None:
    four.run(none_is_plain, "fsdp", "", {})


@pytest.mark.parametrize(("way", "options"), [*WAYS, ("no all-reduce", {})], ids=str)
def test_none_is_plain_hsdp_to_the_bit(four: Pool, way: str, options: dict[str, Any]) -> None:
    four.run(none_is_plain, "hsdp", way, options)


# ---- when gradients are there ------------------------------------------------------------------------------------------
def hooks_see(rank: int, world: int, kind: str) -> None:
    """An optimizer in the pass, a pass that was broken off, a gradient that was there before: all as plain FSDP has it."""

    def start(attached: bool) -> list[Tensor]:
        net = make(kind)
        handle = grace.attach(net, "none") if attached else None
        optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in net.head.parameters()}

        def step(p: Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in optimizers:
            p.register_post_accumulate_grad_hook(step)
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(rank))
        if hasattr(net, "reset_iter_state"):  # since torch 2.13
            broken = net.hidden.register_full_backward_pre_hook(fail)
            with pytest.raises(ValueError, match="the user's"):
                net(x).sum().backward()
            broken.remove()
            net.reset_iter_state()
            net.zero_grad()
        for _ in range(2):  # the second is added to the first
            net(x).square().mean().backward()
        if handle is not None:
            assert handle.stats.steps == 2
            handle.detach()
        return [x for p in net.parameters() for x in (p, p.grad) if x is not None]

    def fail(*_: object) -> None:
        raise ValueError("the user's")

    plain, ours = start(False), start(True)
    assert len(plain) == len(ours)
    assert all(torch.equal(a.to_local(), b.to_local()) for a, b in zip(plain, ours, strict=True))


@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_gradients_are_there_for_hooks_and_after_a_pass_that_was_broken_off(four: Pool, kind: str) -> None:
    four.run(hooks_see, kind)


# ---- layouts --------------------------------------------------------------------------------------------------------
def beside_tensor_parallelism(rank: int, world: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    ends = []
    for method in (None, "none", grace.Policy([("*", "topk:ratio=0.1")])):  # of small tensors, too
        torch.manual_seed(7)
        net = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 40))
        parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        for part in (net[0], net[2], net):
            fully_shard(part, mesh=mesh["data"])
        handle = None if method is None else grace.attach(net, method)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            made = torch.Generator().manual_seed(10 * step + rank // 2)  # ranks of one model have the same batch
            optimizer.zero_grad()
            net(torch.randn(8, 32, generator=made)).square().mean().backward()
            optimizer.step()
        ends.append(torch.cat([p.to_local().detach().flatten() for p in net.parameters()]))
        if handle is not None:
            assert handle.world == 2
            handle.checkpoint().state_dict()
            handle.detach()
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_beside_tensor_parallelism_the_data_parallel_axis_is_compressed(four: Pool) -> None:
    four.run(beside_tensor_parallelism)


def columns(rank: int, world: int, kind: str) -> None:
    """Sharded along columns, in modules of several parameters with one that is frozen: to the bit with none, and conserved."""
    from torch.distributed.tensor import Shard

    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = torch.Generator().manual_seed(5)
            self.wide = nn.Parameter(torch.randn(48, 32, generator=made))
            self.tall = nn.Parameter(torch.randn(32, 48, generator=made))
            self.fixed = nn.Parameter(torch.randn(48, 48, generator=made), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x @ self.wide.t() @ self.fixed) @ self.tall.t()

    def begin(method: str | None) -> Any:
        net = nn.Sequential(Columns(), Columns())
        for part in (*net, net):
            fully_shard(part, mesh=mesh_of(kind), shard_placement_fn=lambda p: Shard(1))
        return net, None if method is None else grace.attach(net, method)

    ends = []
    for method in (None, "none", "topk:ratio=0.1"):
        net, handle = begin(method)
        start = {name: p.full_tensor().detach().clone() for name, p in net.named_parameters()}
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=1.0)
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(rank))
        net(x).square().mean().backward()
        optimizer.step()
        ends.append({name: p.full_tensor().detach().clone() for name, p in net.named_parameters()})
        if method is not None and method != "none":
            for name, x in full(handle.checkpoint().state_dict()["owed"]).items():
                torch.testing.assert_close(ends[2][name] - x, ends[0][name], atol=1e-5, rtol=0)
                assert bool(x.any())
                assert not torch.equal(ends[2][name], start[name])
        if handle is not None:
            handle.detach()
    assert all(torch.equal(x, ends[1][name]) for name, x in ends[0].items())


@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_parameters_may_be_sharded_along_columns(four: Pool, kind: str) -> None:
    four.run(columns, kind)


# ---- refusals -------------------------------------------------------------------------------------------------------
def refused(rank: int, world: int) -> None:
    def says(text: str, net: nn.Module, method: str = "topk:ratio=0.1", **options: Any) -> None:
        with pytest.raises(ConfigurationError, match=text):
            grace.attach(net, method, **options)

    says("powersgd has an exchange of its own", make(), "powersgd")
    says("memory=ef21 has an exchange of its own", make(), "topk:memory=ef21")
    says("powersgd:rank=1 has an exchange of its own", make(), grace.Policy.adaptive("powersgd", budget=4.0))
    says("follow what is lost on one axis", make("hsdp"), "topk", shard=grace.Policy.adaptive("qsgd"))
    says("Let it: replicate='auto'", make("hsdp"), "topk", shard="auto")
    says("Name what they travel in; legal: int8", make(), "topk", weights="auto")
    says("compressed by parameter", make(), granularity="bucket")
    says("no rank has the whole", make(), on_difference="broadcast")
    says("legal: 'propagate', 'skip'", make("hsdp"), nonfinite="error")
    says("reduced in float32 or bfloat16", make(), scaler=torch.amp.GradScaler("cpu"))
    says("reduced in torch.float16", make(mp={"reduce_dtype": torch.float16}))
    with mock.patch("grace.adapters.fsdp.torch.__version__", "2.8.1"):
        says("torch 2.9 or newer", make())
    net = make()
    net.first.set_custom_reduce_scatter(mock.Mock(spec=object))
    says("module first has a reduce-scatter of its own", net)
    net = make()
    net.first.set_all_reduce_hook(lambda flat: None)
    says("module first has an all-reduce hook", net)
    from torch.distributed.device_mesh import init_device_mesh

    net, mesh = Net(), init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "expert"))
    fully_shard(net.hidden, mesh=mesh["expert"])  # as experts are
    fully_shard(net, mesh=mesh["data"])
    says(r"'\S+' are shared by ranks .* compresses between the same ranks for all", net)
    says("no part of any parameter", shard(nn.Sequential(nn.Linear(8, 1))))
    net = Net()
    for p in net.parameters():
        p.requires_grad_(False)
    says("no sharded parameter requires", shard(net))
    net = make()
    handle = grace.attach(net, "topk:ratio=0.1")
    says("Grace is attached", net)
    handle.detach()
    for dtype in (torch.float16, torch.float64):
        net = Net().to(dtype)
        fully_shard(net)
        says(f"reduced in {dtype}", net)
    net = make()
    grace.attach(net, "topk:ratio=0.1")
    net.double()
    with pytest.raises(InputError, match=r"reduced in torch\.float64"):
        net(torch.randn(2, 32, dtype=torch.float64)).sum().backward()


def test_what_cannot_work_is_refused(pair: Pool) -> None:
    pair.run(refused)
    pair.retire()  # a backward pass has failed half-way
