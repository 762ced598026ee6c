"""Checkpoints of models under fully_shard, on other numbers of workers too: in real processes."""

from __future__ import annotations

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
from grace.errors import ConfigurationError, GraceError, StateError
from grace.run.checkpoint import pack, unpack
from tests.distributed.processes import Pool
from tests.distributed.sharded_models import Given, four, full, fully_shard, gradients_of, mesh_of, pytestmark

__all__ = ["four", "pytestmark"]


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
    """Catches "a checkpoint of sums"."""
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
    """State that replicas share of a shard goes on with as many shards; that of one worker starts afresh, with a message."""
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


HSDP_METHODS = {"wide": "powersgd:rank=2", "short": "qsgd:bits=4"}


def chosen(rank: int, world: int, place: str) -> list[str]:
    """From a fixed choice between replicas to auto, and from that to auto where each rank gets the mean of its rows; what auto
    says of each.
    """
    net = Given()
    fully_shard(net, mesh=mesh_of("hsdp"))
    handle = grace.attach(net, grace.Policy(list(HSDP_METHODS.items())))
    net(gradients_of(rank, 0)).backward()
    dcp.save({"grace": handle.checkpoint()}, checkpoint_id=place + "0")
    handle.detach()
    told = []
    for turn, kind in enumerate(("hsdp", "fsdp"), 1):
        net = Given()
        fully_shard(net, mesh=mesh_of(kind))
        with mock.patch.multiple("grace.auto.calibrate", LINK_NS=1, CODEC_NS=1):  # what it finds is not used
            handle = grace.attach(net, "auto:methods=(powersgd:rank=2;qsgd:bits=4),share=0")
        checkpoint = handle.checkpoint()
        dcp.load({"grace": checkpoint}, checkpoint_id=place + str(turn - 1))
        owed = full(checkpoint.state_dict()["owed"])
        if turn == 1:
            assert bool(owed["wide"].any())
        if kind == "hsdp":
            methods = handle._session.methods()
            assert methods == {name: HSDP_METHODS[name] for name in methods}
        net(gradients_of(rank, turn)).backward()
        dcp.save({"grace": checkpoint}, checkpoint_id=place + str(turn))
        about = unpack(checkpoint.state_dict()["about"])
        assert about["step"] == turn + 1
        assert about["auto"]["fingerprint"].startswith(f"{2 if kind == 'hsdp' else 4} workers")
        assert about["methods"].keys() == HSDP_METHODS.keys(), "of all parameters, whoever has a part of them"
        told.append("; ".join(text for _, text in handle.explain().history))  # type: ignore[attr-defined]
        handle.detach()
    return told


def test_a_choice_goes_on_where_it_can(four: Pool, tmp_path: Path) -> None:
    told = four.run(chosen, str(tmp_path / "checkpoint"))
    for first, elsewhere in told:
        assert "goes on with the methods of a state that was loaded, " in first
        assert "cannot use the methods of the state that was loaded, and chooses anew: " in elsewhere
        assert "has no reduce-scatter" in elsewhere
