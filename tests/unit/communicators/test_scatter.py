"""Scattered rows: what is asked of the network, and what memories make of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import AllReduce, AllToAll, Collective, Exchange
from grace.contract.peer import Peer
from grace.errors import InputError
from grace.run import simulate

W = 3


def rows(seed: int, width: int = 5) -> list[Tensor]:
    return [torch.randn(W, width, generator=torch.Generator().manual_seed(10 * seed + rank)) for rank in range(W)]


def watch(exchange: Exchange[Any], asked: list[Collective]) -> Exchange[Any]:
    try:
        op = next(exchange)
        while True:
            asked.append(op)
            op = exchange.send((yield op))
    except StopIteration as stop:
        return stop.value


@pytest.mark.parametrize("communicator", ["allreduce", "allgather", "broadcast", "scatterreduce", "parameterserver"])
@pytest.mark.parametrize("memory", ["none", "residual"])
def test_one_all_to_all_whatever_the_communicator(communicator: str, memory: str):
    name = "none" if communicator == "allreduce" else "topk:ratio=1"
    method = grace.method(f"{name}{',' if ':' in name else ':'}communicator={communicator},memory={memory}")
    xs, asked = rows(0), []
    runs = [method.scatter(x.clone(), method.init(x), Peer(rank, W)) for rank, x in enumerate(xs)]
    outs = simulate([watch(runs[0], asked), *runs[1:]])
    overflows = name == "none"  # finite numbers may add up to an inf, which only the owner of a row sees
    assert [type(op) for op in asked] == [AllToAll, AllReduce][: 1 + overflows]
    for rank, out in enumerate(outs):
        torch.testing.assert_close(out.mean, torch.stack(xs).mean(0)[rank])


@pytest.mark.parametrize("memory", ["residual", "momentum", "momentumcorrection", "distef", "ef21"])
def test_memories_scatter_what_they_exchange(memory: str):
    method = grace.method(f"none:communicator=allgather,memory={memory}")
    states = {verb: [method.init(x) for x in rows(0)] for verb in ("exchange", "scatter")}
    for step in range(3):
        outs = {}
        for verb, held in states.items():
            runs = [
                getattr(method, verb)(x.clone(), state, Peer(rank, W, step))
                for rank, (x, state) in enumerate(zip(rows(step), held, strict=True))
            ]
            outs[verb] = simulate(runs)
            states[verb] = [out.state for out in outs[verb]]
        for rank, out in enumerate(outs["scatter"]):
            torch.testing.assert_close(out.mean, outs["exchange"][0].mean[rank])


@pytest.mark.parametrize("x", [torch.ones(2, 5), torch.ones(3), torch.ones(3, 5, dtype=torch.bfloat16)])
@pytest.mark.parametrize("method", ["topk:memory=none", "powersgd"])
def test_what_cannot_be_scattered_is_refused_by_name(method: str, x: Tensor):
    made = grace.method(method)
    with pytest.raises(InputError, match="'w': scatter takes float32 rows, one for each of 3 workers"):
        next(made.scatter(x, made.init(x), Peer(0, W, name="w")))
