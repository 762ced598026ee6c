"""A rank that torchrun starts for :mod:`tests.gpu.test_nccl`: every collective in every dtype gives what the simulator gives,
and what cannot travel is refused before anything is sent. Rank 0 prints how many were compared.

Args:
    cuda, over NCCL, or cpu, over gloo.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import grace
from grace.collectives import AllGather, AllReduce, Collective, Permute
from grace.errors import TransportError
from grace.run.simulate import answers
from grace.transports.refusing import MOVABLE
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.test_transport import ops_of

PLACES = {"cuda": "nccl", "cpu": "gloo"}


def fits(op: Collective, world: int) -> bool:
    """True if a permutation names only ranks that there are."""
    return not isinstance(op, Permute) or max(map(max, op.pairs)) < world


def compare(transport: TorchDistributed, there: torch.device) -> int:
    """Number of collectives that gave what the simulator gives."""
    compared = 0
    for dtype in MOVABLE:
        if dtype is torch.bool:
            continue
        everyone = [
            [op for op in ops_of(rank, transport.world, dtype) if fits(op, transport.world)]
            for rank in range(transport.world)
        ]
        for i, op in enumerate(everyone[transport.rank]):
            want: Any = answers([ops[i] for ops in everyone])[transport.rank]
            got = transport.run(replace(op, buf=op.buf.to(there)))
            assert got.device == there, (op, got.device)
            assert torch.equal(got.cpu(), want), (op, got, want)
            compared += 1
    flags = torch.tensor([transport.rank == 0, True], device=there)
    assert transport.run(AllGather(flags)).tolist() == [[rank == 0, True] for rank in range(transport.world)]
    return compared + 1


def refuse(transport: TorchDistributed, there: torch.device) -> None:
    """Refusals of what no collective takes, and for NCCL of a tensor of the host."""
    bad: list[Collective] = [AllReduce(torch.ones(2, dtype=torch.int16, device=there), "sum")]
    bad.append(AllReduce(torch.ones(2, dtype=torch.int32, device=there), "mean"))
    if there.type == "cuda":
        bad.append(AllReduce(torch.ones(2), "sum"))
    for op in bad:
        with pytest.raises(TransportError, match="nothing was sent"):
            transport.run(op)


def main(kind: str) -> None:
    grace.init_process_group(PLACES[kind])
    there = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    transport = TorchDistributed.of_same_ranks()
    transport.all_gather_text("", seconds=60)
    compared = compare(transport, there)
    refuse(transport, there)
    if transport.rank == 0:
        sys.stdout.write(f"compared {compared}\n")
    transport.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
