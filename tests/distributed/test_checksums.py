"""A bit that flips in a payload, in real processes: the rank that reads it names sender and step, and no other hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.collectives import AllGather, AllToAll, Collective
from grace.errors import GraceError, PayloadError, TransportError
from grace.transports.base import Wrapper
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import Pool

VICTIM, SENDER, AT = 2, 1, 3


class Flipping(Wrapper):
    """Flips a bit of what came from one rank, in one of the collectives: of a value, which every decoder takes."""

    left = AT

    def run(self, op: Collective) -> Tensor:
        answer = self.transport.run(op)
        if isinstance(op, AllGather | AllToAll):
            self.left -= 1
            if self.left == -1:
                answer[SENDER].view(torch.uint8).view(-1)[-6] ^= 1
        return answer


def train(rank: int, world: int, spec: str, checksum: bool) -> tuple[str, str]:
    torch.manual_seed(3)
    model = nn.Linear(40, 32, bias=False)
    network: Any = TorchDistributed.of_same_ranks(dist.group.WORLD)
    network = Flipping(network) if rank == VICTIM else network
    ddp = DistributedDataParallel(model)
    handle = grace.attach(ddp, spec, transport=network, checksum=checksum)
    kind, message = "", ""
    try:
        for step in range(6):
            ddp(torch.randn(8, 40, generator=torch.Generator().manual_seed(10 * step + rank))).pow(2).mean().backward()
    except GraceError as error:
        kind, message = type(error).__name__, str(error)
    handle.detach()
    return kind, message


@pytest.mark.parametrize(
    ("spec", "step"),
    [("qsgd:bits=8", AT), ("topk:ratio=0.1", AT), ("qsgd:bits=8,communicator=scatterreduce", AT // 2)],  # two in a step
)
def test_the_rank_that_reads_it_names_sender_and_step(pools: Callable[[str, int], Any], spec: str, step: int) -> None:
    pool: Pool = pools("gloo", 3)
    results = pool.run(train, spec, True)
    for rank, (kind, message) in enumerate(results):
        assert kind == (PayloadError if rank == VICTIM else TransportError).__name__, message
        assert rank != VICTIM or message.startswith(f"step {step}: what rank {SENDER} sent in "), message
    assert "checksum does not match" in results[VICTIM][1]


def test_without_checksums_nobody_says_so(pools: Callable[[str, int], Any]) -> None:
    pool: Pool = pools("gloo", 3)
    assert [kind for kind, _ in pool.run(train, "qsgd:bits=8", False)] == ["", "", ""]
