"""Updates and debts of a model under fully_shard, by any method: in real processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import grace
from grace.errors import NonFiniteError
from tests.distributed.processes import Pool
from tests.distributed.sharded_models import (
    Given,
    four,
    fully_shard,
    gradients_of,
    make,
    mesh_of,
    pytestmark,
    three,
    train,
)

__all__ = ["four", "pytestmark", "three"]


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
        own = owed.get(name)
        whole = [debt] * world
        dist.all_gather_object(whole, None if own is None else (own.to_local(), own.device_mesh.get_coordinate()[-1]))
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
    results = three.run(learn, "fsdp", spec, "")
    assert len({out for out, *_ in results}) == 1
    for _, planned, moved in results:
        assert planned <= moved <= planned + 32, "what travels as one is aligned"


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "powersgd", "signsgd", "topk:memory=ef21"])
def test_any_method_goes_between_replicas(four: Pool, spec: str) -> None:
    assert len({out for out, *_ in four.run(learn, "hsdp", spec, "")}) == 1


@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_parameters_may_be_unused(four: Pool, kind: str) -> None:
    assert len({out for out, *_ in four.run(learn, kind, "topk:ratio=0.05", "unused")}) == 1


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
