"""Gossip, in real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

import grace
from grace.contract.peer import Peer
from grace.gossip import GossipSimulator, read_gossip
from grace.gossip.settings import with_graph
from grace.gossip.worker import GossipWorker
from grace.run.drive import drive
from grace.transports.torch_distributed import TorchDistributed
from tests.unit.adapters.outer.training import flat, make_inner, make_model, train

SPECS = (
    "dpsgd", "choco:method=(topk:ratio=0.2),graph=exponential", "choco:method=(threshold:v=0.5),gamma=0.2",
    "deepsqueeze:method=(qsgd:bits=4),gamma=0.3,graph=one_peer_exponential",
)  # fmt: skip


def numbers(world: int) -> dict[str, list[Tensor]]:
    made = torch.Generator().manual_seed(0)
    shapes = {"w": (40, 40), "b": (40,)}
    return {name: [torch.randn(shape, generator=made) for _ in range(world)] for name, shape in shapes.items()}


def as_simulated(rank: int, world: int) -> None:
    """The bits over gloo are those of the simulator, and so are the bytes that are counted."""
    network = TorchDistributed()
    try:
        for spec in SPECS:
            settings, graph = with_graph(read_gossip(spec), world)
            expected = numbers(world)
            held = {name: xs[rank] for name, xs in expected.items()}
            worker, simulator = GossipWorker(held, settings, graph), GossipSimulator(spec, world)
            for step in range(3):
                peers = {name: Peer(rank, world, step, name) for name in held}
                outs = drive(worker.mix(held, peers.__getitem__), network)
                held, expected = {name: out.mean for name, out in outs.items()}, simulator.step(expected)
                for name, x in held.items():
                    assert torch.equal(x, expected[name][rank]), (spec, step, name)
    finally:
        network.close()


def trained(rank: int, world: int, place: str) -> None:
    """With messages beside the steps: one model at the end, which has learned."""
    net = make_model(1 + rank)
    inner = make_inner(net)
    handle = grace.gossip(net, inner, "topk:ratio=0.2", overlap=True, check=True)
    start = flat(net.parameters()).clone()
    train(net, inner, rank, range(8))
    assert 0 < handle.measure() < 0.5
    sent = handle.stats.traffic.sent
    handle.average()
    assert handle.stats.traffic.sent > sent > 0
    held = flat(net.parameters()).clone()
    rows = [torch.empty_like(held) for _ in range(world)]
    dist.all_gather(rows, held)
    assert all(torch.equal(held, row) for row in rows)
    assert not torch.equal(held, start)
    dcp.save({"gossip": handle.checkpoint()}, checkpoint_id=place)
    handle.detach()
    net = make_model(7)
    handle = grace.gossip(net, make_inner(net), graph="ring")
    dcp.load({"gossip": handle.checkpoint()}, checkpoint_id=place)
    assert torch.equal(flat(net.parameters()), held)
    assert handle.measure() < 1e-6  # a mean of three equal numbers is rounded
    handle.detach()


def test_it_is_as_simulated_and_trains(pools: Callable[[str, int], Any], tmp_path: Path) -> None:
    pool = pools("gloo", 3)
    pool.run(as_simulated)
    pool.run(trained, str(tmp_path / "checkpoint"))
