"""Models under DistributedDataParallel, which the tests of that adapter share."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Convolutions, norms, a branch that is not always used."""

    def __init__(self, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.conv = nn.Conv2d(3, 24, 3, dtype=dtype)
        self.norm = nn.GroupNorm(2, 24, dtype=dtype)
        self.hidden = nn.Linear(24 * 16, 48, dtype=dtype)
        self.extra = nn.Linear(48, 48, dtype=dtype)
        self.head = nn.Linear(48, 5, dtype=dtype)

    def forward(self, x: Tensor, use_extra: bool = True) -> Tensor:
        x = torch.relu(self.hidden(torch.relu(self.norm(self.conv(x))).flatten(1)))
        return self.head(self.extra(x) if use_extra else x)


def model(dtype: torch.dtype = torch.float32, **options: Any) -> DistributedDataParallel:
    torch.manual_seed(7)
    net = Net(dtype)
    if options.pop("channels_last", False):
        net = net.to(memory_format=torch.channels_last)
    return DistributedDataParallel(net, bucket_cap_mb=0.03, **options)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 3, 6, 6, generator=made).to(dtype), torch.randint(0, 5, (8,), generator=made)


def train(net: DistributedDataParallel, rank: int, steps: range, **inputs: Any) -> DistributedDataParallel:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    dtype = next(net.parameters()).dtype
    for step in steps:
        x, y = batch(rank, step, dtype)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x, **inputs).float(), y).backward()
        optimizer.step()
    return net


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])


def assert_replicas_agree(net: nn.Module, world: int) -> None:
    own = weights(net)
    all_of_them = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(all_of_them, own)
    assert bool(own.isfinite().all())
    assert all(torch.equal(own, other) for other in all_of_them), "replicas differ"
