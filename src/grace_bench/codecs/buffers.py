"""The numbers that are compressed, and buffers for them: made once per size and shared by all cases."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from grace_bench.codecs.clock import ADD, Case

WORKERS = 8  # by default
COPIES = 6  # tensors of this size that `Buffers` holds at most


class Buffers:
    """Heavy-tailed data ``randn * exp(randn)`` of n numbers, and preallocated tensors ``[1, n]`` like it.

    x: worker 0's gradient. memory: what it remembers. rows, rest, out: to be overwritten. workers: how many exchange.
    device: where the tensors are.
    """

    def __init__(self, n: int, seed: int = 0, workers: int = WORKERS, device: torch.device | str = "cpu"):
        self.n, self.workers = n, workers
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(1, n, generator=generator)
        self.rows = torch.randn(1, n, generator=generator)
        self.x.mul_(self.rows.exp_())
        self.x, self.rows = self.x.to(device), self.rows.to(device)
        self.memory = self.gradient(workers)
        self.rest, self.out = torch.zeros_like(self.x), torch.zeros_like(self.x)

    def gradient(self, worker: int) -> Tensor:
        """Another worker's gradient ``[1, n]``: the same numbers, elsewhere."""
        return self.x.roll(worker * self.n // (self.workers + 1), dims=1)

    def restore(self) -> None:
        """Worker 0's gradient in ``rows``, which cases may overwrite."""
        self.rows.copy_(self.x)

    def matrix(self, shape: tuple[int, int] | None = None) -> tuple[int, int]:
        """The shape in which methods that want a matrix see these numbers, or nearly all of them."""
        side = math.isqrt(self.n)
        return shape or (side, self.n // side)

    def add(self) -> Case:
        """The yardstick: reads two tensors and writes one."""
        return Case(ADD, lambda: self.out.add_(self.x))

    def yardsticks(self) -> list[Case]:
        """Measured for comparison: a copy, on the CPU by the C library, and a sum, which only reads."""
        if not self.x.is_cpu:
            return [Case("memcpy", lambda: self.out.copy_(self.x)), Case("sum", lambda: self.x.sum())]
        to, size = self.out.data_ptr(), 4 * self.n
        return [Case("memcpy", lambda: ctypes.memmove(to, self.x.data_ptr(), size)), Case("sum", lambda: self.x.sum())]
