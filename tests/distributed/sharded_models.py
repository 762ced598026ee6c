"""Models under fully_shard, which the tests of sharded training share: FSDP on three ranks, HSDP on two machines of two."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.distributed.processes import Pool

fsdp = pytest.importorskip("torch.distributed.fsdp")
fully_shard = getattr(fsdp, "fully_shard", None)
pytestmark = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9),
    reason="torch has no reduce-scatter to replace",
)


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


def full(owed: dict[str, Any]) -> dict[str, Tensor]:
    return {name: x.full_tensor() for name, x in owed.items()}


@pytest.fixture
def three(pools: Callable[[str, int], Any]) -> Pool:
    ready: Pool = pools("gloo", 3)
    return ready


@pytest.fixture
def four(pools: Callable[[str, int], Any]) -> Pool:
    ready: Pool = pools("gloo", 4)
    return ready
