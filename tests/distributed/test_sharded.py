"""Models under fully_shard, in real processes: FSDP on three ranks, HSDP on two machines of two."""

from __future__ import annotations

import functools
import os
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

import grace
from grace.adapters.sharded_checkpoint import ShardedCheckpoint
from grace.collectives import ReduceScatter
from grace.errors import ConfigurationError, GraceError, InputError, NonFiniteError, StateError
from grace.run.checkpoint import pack, unpack
from tests.distributed.processes import Pool, fork

fsdp = pytest.importorskip("torch.distributed.fsdp")
fully_shard = getattr(fsdp, "fully_shard", None)
pytestmark = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9),
    reason="torch has no reduce-scatter to replace",
)

BF16 = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16}
MIXED = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}


class Net(nn.Module):
    """Rows that no number of ranks divides, parameters with fewer rows than ranks, and a branch that is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 50)
        self.hidden = nn.Linear(50, 40)
        self.branch = nn.Linear(40, 40)
        self.head = nn.Linear(40, 1)

    def forward(self, x: Tensor, use_branch: bool = True) -> Tensor:
        x = torch.tanh(self.hidden(torch.tanh(self.first(x))))
        return self.head(self.branch(x) if use_branch else x)


@functools.cache  # a mesh's groups stay, and each has a thread that wakes up a hundred times a second
def mesh_of(kind: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    world = dist.get_world_size()
    if kind == "hsdp":
        return init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("machines", "machine"))
    return init_device_mesh("cpu", (world,))


def shard(net: nn.Module, kind: str = "fsdp", mp: dict[str, Any] | None = None, **options: Any) -> nn.Module:
    options = {"mesh": mesh_of(kind), "mp_policy": fsdp.MixedPrecisionPolicy(**(mp or {})), **options}
    for part in (*net.children(), net):
        fully_shard(part, **options)
    return net


def make(kind: str = "fsdp", **options: Any) -> nn.Module:
    torch.manual_seed(7)
    return shard(Net(), kind, **options)


def train(net: nn.Module, steps: int, way: str = "", from_step: int = 0) -> Tensor:
    """Trains with momentum and clipping; this rank's shards at the end."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(from_step, from_step + steps):
        made = torch.Generator().manual_seed(100 * step + dist.get_rank())
        parts = 2 if way in ("accumulate", "no sync", "no all-reduce") else 1
        optimizer.zero_grad()
        for part in range(parts):
            x = torch.randn(16, 32, generator=made)
            if way == "no sync":
                net.set_requires_gradient_sync(part == parts - 1)
            if way == "no all-reduce":
                net.set_requires_all_reduce(part == parts - 1)
            out = net(x, way != "unused" or step % 2 == 1)
            nn.functional.mse_loss(out.float(), x.sum(1, keepdim=True).tanh()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return torch.cat([p.to_local().detach().flatten().float() for p in net.parameters()])


@pytest.fixture
def three(pools: Callable[[str, int], Any]) -> Pool:
    found: Pool = pools("gloo", 3)
    return found


@pytest.fixture
def four(pools: Callable[[str, int], Any]) -> Pool:
    found: Pool = pools("gloo", 4)
    return found


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
                    mine = p.to_local()
                    mine.copy_(torch.linspace(-0.1, 0.1, mine.numel()).view_as(mine))
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


def test_none_is_plain_fsdp_on_two_and_on_four(pair: Pool, four: Pool) -> None:
    for pool in (pair, four):
        pool.run(none_is_plain, "fsdp", "", {})


@pytest.mark.parametrize(("way", "options"), [*WAYS, ("no all-reduce", {})], ids=str)
def test_none_is_plain_hsdp_to_the_bit(four: Pool, way: str, options: dict[str, Any]) -> None:
    four.run(none_is_plain, "hsdp", way, options)


# ---- what is applied and owed ---------------------------------------------------------------------------------------
class Given(nn.Module):
    """Has the gradients that it is given: those of ``sum(w * g)``."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.zeros(50, 30))
        self.short = nn.Parameter(torch.zeros(2, 700))

    def forward(self, gradients: dict[str, Tensor]) -> Tensor:
        return (self.wide * gradients["wide"]).sum() + (self.short * gradients["short"]).sum()


def gradients_of(rank: int, step: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(1000 * step + rank)
    return {"wide": torch.randn(50, 30, generator=made), "short": torch.randn(2, 700, generator=made)}


def conserve(rank: int, world: int, kind: str, spec: str) -> None:
    net = Given()
    fully_shard(net, mesh=mesh_of(kind))
    handle = grace.attach(net, grace.Policy([("*", spec)]))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    for step in range(4):
        optimizer.zero_grad()
        net(gradients_of(rank, step)).backward()
        optimizer.step()
        if step == 1:
            handle.switch("topk:ratio=0.2")
            handle.switch(grace.Policy([("*", spec)]))
    owed = handle.checkpoint().state_dict()["owed"]
    handle.detach()
    for name, p in net.named_parameters():
        computed = sum(gradients_of(r, step)[name] for r in range(world) for step in range(4)) / world
        debt = torch.zeros(p.shape)
        mine = owed.get(name)
        whole = [debt] * world
        dist.all_gather_object(
            whole, None if mine is None else (mine.to_local(), mine.device_mesh.get_coordinate()[-1])
        )
        parts = {place: part for part, place in filter(None, whole)}
        debt = torch.cat([parts[place] for place in sorted(parts)])
        torch.testing.assert_close(debt - p.full_tensor(), computed, atol=2e-5, rtol=0)
        assert "none" in spec or bool(debt.any()), "something is owed"


@pytest.mark.parametrize(
    "spec",
    [
        "topk:ratio=0.05",
        "efsignsgd",
        "qsgd:bits=2,memory=residual",
        "randomk:ratio=0.1",
        "none",
        "topk:ratio=0.05,start=3",
        "topk:ratio=linear(0.2->0.02, 3 steps)",
    ],
)
@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_what_is_applied_and_what_is_owed_is_what_was_computed(four: Pool, kind: str, spec: str) -> None:
    four.run(conserve, kind, spec)


def as_written_down(rank: int, world: int) -> None:
    """Against the formula in a few lines: of each owner's row the largest of gradient plus memory, and their mean."""
    net = Given()
    fully_shard(net, mesh=mesh_of("fsdp"))
    handle = grace.attach(net, grace.Policy([("wide", "topk:ratio=0.1"), ("*", "none")]))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    rows = -(-50 // world) * 30  # numbers of a row: with padding
    memories, applied = torch.zeros(world, world, rows), torch.zeros(world, rows)
    for step in range(4):
        optimizer.zero_grad()
        net(gradients_of(rank, step)).backward()
        optimizer.step()
        for r in range(world):
            given = torch.zeros(world * rows)
            given[:1500] = gradients_of(r, step)["wide"].flatten()
            owed = memories[r] + given.view(world, rows)
            kept = owed.abs().topk(rows // 10, dim=1).indices
            applied += torch.zeros_like(owed).scatter_(1, kept, owed.gather(1, kept)) / world
            memories[r] = owed.scatter(1, kept, 0.0)
    handle.detach()
    torch.testing.assert_close(-net.wide.full_tensor().flatten(), applied.flatten()[:1500], atol=1e-5, rtol=0)


def test_top_k_is_of_each_owners_row_with_what_was_not_sent_before(three: Pool) -> None:
    three.run(as_written_down)


def conserve_axes(rank: int, world: int, slow: str, fast: str) -> None:
    """What is applied and owed is what came of the fast axis, which owes nothing and is off by its rounding."""
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


def learn(rank: int, world: int, kind: str, spec: str, way: str) -> tuple[float, int, int]:
    net = make(kind)
    handle = grace.attach(net, spec, check=True)
    train(net, 3, way)
    planned = handle.plan().sent_bytes
    sent = handle.stats.traffic.sent
    train(net, 1, way, from_step=3)
    moved = handle.stats.traffic.sent - sent
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = float(net(x).square().mean())
    assert handle.error is None
    handle.detach()
    return out, planned, moved


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "qsgd:bits=4", "efsignsgd", "bf16", "topk:ratio=0.1,start=2"])
def test_all_ranks_have_the_same_weights_and_send_what_is_planned(three: Pool, spec: str) -> None:
    found = three.run(learn, "fsdp", spec, "")
    assert len({out for out, *_ in found}) == 1
    for _, planned, moved in found:
        assert planned <= moved <= planned + 24, "what travels as one is aligned"


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "powersgd", "signsgd", "topk:memory=ef21"])
def test_any_method_goes_between_replicas(four: Pool, spec: str) -> None:
    assert len({out for out, *_ in four.run(learn, "hsdp", spec, "")}) == 1


@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13), reason="unused parameters take torch 2.13"
)
@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_parameters_may_be_unused(four: Pool, kind: str) -> None:
    assert len({out for out, *_ in four.run(learn, kind, "topk:ratio=0.05", "unused")}) == 1


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


def nonfinite(rank: int, world: int, kind: str, what: str) -> str:
    net = Given()
    fully_shard(net, mesh=mesh_of(kind))
    handle = grace.attach(net, "topk:ratio=0.1", nonfinite=what)
    given = gradients_of(rank, 0)
    if rank == 1:
        given["wide"][0, 0] = torch.inf
    try:
        net(given).backward()
    except NonFiniteError as error:
        return type(error).__name__
    finally:
        handle.detach()
    gradient = net.wide.grad.full_tensor()
    return "nan" if bool(gradient.isnan().any()) else "zero" if not bool(gradient.any()) else "numbers"


@pytest.mark.parametrize(("what", "seen"), [("propagate", "nan"), ("skip", "zero"), ("error", "NonFiniteError")])
def test_an_inf_of_one_rank_is_known_to_all(three: Pool, what: str, seen: str) -> None:
    assert three.run(nonfinite, "fsdp", what) == [seen] * 3


def test_an_inf_between_replicas_is_of_a_shard(four: Pool) -> None:
    assert four.run(nonfinite, "hsdp", "propagate") == ["nan"] * 4
    assert four.run(nonfinite, "hsdp", "skip") == ["numbers"] * 4


# ---- checkpoints ----------------------------------------------------------------------------------------------------
def on(ranks: int, kind: str = "fsdp") -> Any:
    """A mesh of the first ranks. All ranks call it, the others get None."""
    from torch.distributed.device_mesh import DeviceMesh

    place = torch.arange(ranks)
    mesh = DeviceMesh(
        "cpu", place.view(2, -1) if kind == "hsdp" else place, mesh_dim_names=("a", "b")[: 1 + (kind == "hsdp")]
    )
    return mesh if dist.get_rank() < ranks else None


def run_on(mesh: Any, steps: int, world: int) -> tuple[nn.Module, grace.Handle]:
    net = Given()
    fully_shard(net, mesh=mesh)
    handle = grace.attach(net, "topk:ratio=0.05")
    for step in range(steps):
        net(gradients_of(dist.get_rank(), step)).backward()
    return net, handle


def full(owed: dict[str, Any]) -> dict[str, Tensor]:
    return {name: x.full_tensor() for name, x in owed.items()}


def resized(rank: int, world: int, old: tuple[int, str], new: tuple[int, str], place: str) -> None:
    group = dist.new_group(list(range(old[0]))), dist.new_group(list(range(new[0])))
    mesh = on(*old)
    before: Any = None
    if mesh is not None:
        _, handle = run_on(mesh, 3, old[0])
        dcp.save({"grace": handle.checkpoint()}, checkpoint_id=place, process_group=group[0])
        before = full(handle.checkpoint().state_dict()["owed"])
        assert bool(before["wide"].any())
        handle.detach()
    shared = [before]
    dist.broadcast_object_list(shared, 0)
    mesh = on(*new)
    if mesh is not None:
        net, handle = run_on(mesh, 0, new[0])
        dcp.load({"grace": handle.checkpoint()}, checkpoint_id=place, process_group=group[1])
        after = full(handle.checkpoint().state_dict()["owed"])
        for name, x in after.items():
            torch.testing.assert_close(x, shared[0][name], atol=1e-6, rtol=1e-6)
        assert handle.state_dict()["step"] == 3
        net(gradients_of(rank, 3)).backward()
        handle.detach()
    dist.barrier()


SIZES = [((4, "fsdp"), (2, "fsdp")), ((3, "fsdp"), (4, "fsdp")), ((4, "hsdp"), (3, "fsdp")), ((2, "fsdp"), (4, "hsdp"))]


@pytest.mark.parametrize(("old", "new"), SIZES, ids=str)
def test_what_is_owed_goes_on_with_other_workers(four: Pool, tmp_path: Path, old: Any, new: Any) -> None:
    four.run(resized, old, new, str(tmp_path / "checkpoint"))


def counts_sums(rank: int, world: int, place: str) -> None:
    def total(self: ShardedCheckpoint, owed: Tensor) -> Any:
        return (yield ReduceScatter(owed, "sum"))

    with mock.patch.object(ShardedCheckpoint, "_mean", total), pytest.raises(AssertionError, match="Tensor-likes"):
        resized(rank, world, (4, "fsdp"), (4, "fsdp"), place)


def test_a_checkpoint_with_a_defect_is_caught(four: Pool, tmp_path: Path) -> None:
    four.run(counts_sums, str(tmp_path / "checkpoint"))


def from_four_to_eight(rank: int, world: int, place: str) -> None:
    resized(rank, world, (4, "fsdp"), (8, "fsdp"), place)
    resized(rank, world, (8, "fsdp"), (4, "hsdp"), place + "2")


@pytest.mark.night("a checkpoint of sums")
def test_what_is_owed_goes_on_with_twice_as_many(tmp_path: Path) -> None:
    pool = Pool(8)
    try:
        pool.run(from_four_to_eight, str(tmp_path / "checkpoint"))
    finally:
        pool.close()


def factors(rank: int, world: int, place: str) -> tuple[str, ...]:
    """What replicas share of a shard goes on with as many shards; what is one worker's starts afresh, and is said."""
    net = Given()
    fully_shard(net, mesh=mesh_of("hsdp"))
    policy = grace.Policy([("wide", "powersgd:rank=2"), ("*", "topk:ratio=0.1,memory=dgc")])
    handle = grace.attach(net, policy)
    for step in range(3):
        net(gradients_of(rank, step)).backward()
    saving = dcp.async_save({"grace": handle.checkpoint()}, checkpoint_id=place, process_group=dist.new_group())
    net(gradients_of(rank, 3)).backward()
    saving.result()
    handle.detach()
    again = Given()
    fully_shard(again, mesh=mesh_of("hsdp"))
    handle = grace.attach(again, policy)
    checkpoint = handle.checkpoint()
    dcp.load({"grace": checkpoint}, checkpoint_id=place)
    (text, parts) = handle._session.worker.state.shared_parts()["wide"]
    assert text.startswith("powersgd")
    assert any(isinstance(part, Tensor) and bool(part.any()) for part in parts)
    net.zero_grad()
    again(gradients_of(rank, 3)).backward()
    handle.detach()
    return checkpoint.afresh


def test_factors_of_a_shard_go_on_and_what_does_not_is_said(four: Pool, tmp_path: Path) -> None:
    assert four.run(factors, str(tmp_path / "checkpoint")) == [("topk:ratio=0.1,memory=dgc",)] * 4


def refuses_others(rank: int, world: int) -> None:
    _net, handle = run_on(on(world), 1, world)
    right = handle.checkpoint().state_dict()
    for changed in (
        {},
        {"about": b"x", "owed": {}},
        {**right, "owed": {"other": torch.ones(1)}},
        {**right, "about": b""},
        {**right, "about": pack({**unpack(right["about"]), "shared": 3})},
    ):
        with pytest.raises(StateError):
            handle.checkpoint().load_state_dict(changed if rank == 1 else right)
    with pytest.raises(ConfigurationError, match="legal: checkpoint\\(\\)"):
        handle.checkpoint("all")
    saved = handle.state_dict()
    handle.load_state_dict(saved)
    handle.detach()
    for call in (handle.checkpoint, lambda: handle.switch("topk"), lambda: handle.load_state_dict(saved)):
        with pytest.raises(GraceError, match="detached"):
            call()


def test_checkpoints_of_something_else_are_refused_on_all_ranks(pair: Pool) -> None:
    pair.run(refuses_others)


# ---- refusals -------------------------------------------------------------------------------------------------------
def refused(rank: int, world: int) -> None:
    def says(text: str, net: nn.Module, method: str = "topk:ratio=0.1", **options: Any) -> None:
        with pytest.raises(ConfigurationError, match=text):
            grace.attach(net, method, **options)

    says("powersgd has an exchange of its own", make(), "powersgd")
    says("memory=ef21 has an exchange of its own", make(), "topk:memory=ef21")
    says("auto chooses for the buckets of DistributedDataParallel", make(), "auto")
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
    net = Net().half()
    fully_shard(net)
    handle = grace.attach(net, "topk:ratio=0.1")
    with pytest.raises(InputError, match=r"reduced in torch\.float16"):
        net(torch.randn(2, 32, dtype=torch.float16)).sum().backward()
    assert isinstance(handle.error, InputError)


def test_what_cannot_work_is_refused(pair: Pool) -> None:
    pair.run(refused)
    pair.retire()  # a backward pass has failed half-way


KILLED = textwrap.dedent(
    """
    import datetime, os, random, signal, sys, threading, time
    import torch, torch.distributed as dist
    import grace
    from grace.errors import GraceError
    from tests.distributed.test_sharded import make, train

    kind, victim, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
    net = make(kind)
    handle = grace.attach(net, "topk:ratio=0.1")
    train(net, 2)
    dist.barrier()
    if dist.get_rank() == victim:
        threading.Timer(random.Random(seed).uniform(0.0, 0.2), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    try:
        train(net, 100_000)
    except (GraceError, RuntimeError) as error:
        print(f"heard: {type(error).__name__} {error}", flush=True)
    os._exit(0)
    """
)


def kill_one(tmp_path: Path, kind: str, victim: int, seed: int) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    start = time.monotonic()
    ended = fork(script, kind, str(victim), str(seed), workers=4)
    assert time.monotonic() - start < 60
    for rank, (status, output) in enumerate(ended):
        assert status == (-signal.SIGKILL if rank == victim else 0), output
        assert rank == victim or "heard:" in output, f"rank {rank} said nothing: {output}"


@pytest.mark.parametrize(("kind", "victim"), [("fsdp", 0), ("hsdp", 3)])
def test_when_a_worker_is_killed_no_other_hangs(tmp_path: Path, kind: str, victim: int) -> None:
    kill_one(tmp_path, kind, victim, seed=os.getpid())


@pytest.mark.night("a killed rank that nobody hears of")
@pytest.mark.parametrize("seed", range(50))
def test_whenever_a_worker_is_killed_no_other_hangs(tmp_path: Path, seed: int) -> None:
    kill_one(tmp_path, ("fsdp", "hsdp")[seed % 2], seed // 2 % 4, seed)
