"""What collectives cost on this network, measured: the constants of the link model.

The training itself has no part in them: each kind of collective is timed alone, on buffers of zeros, by the workers of a
run and over their link. Each kind has a latency (a buffer of four bytes), seconds for some sizes, and processor time per
byte, because moving bytes takes a share of the cores from the model.
"""

from __future__ import annotations

import bisect
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Permute, ReduceScatter
from grace.transports.torch_distributed import TorchDistributed
from grace_bench.network.links import Link

SIZES = (4, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26)  # bytes of a buffer; gloo changes its ways at some MB
_SMALL = SIZES[1]  # below, latency is all
_MOST_SECONDS = 0.6  # that one collective of a size should take
_NEAR = 0.05  # sizes that differ by no more are one
_REPEATS = 3
_COPIED = 16 << 20  # bytes
_Make: TypeAlias = Callable[[Tensor, int], Collective]

MAKERS: dict[str, _Make] = {
    "AllReduce": lambda buf, world: AllReduce(buf, "sum", donate=True),
    "AllGather": lambda buf, world: AllGather(buf),
    "AllToAll": lambda buf, world: AllToAll(_rows(buf, world)),
    "ReduceScatter": lambda buf, world: ReduceScatter(_rows(buf, world), "sum"),
    "Broadcast": lambda buf, world: Broadcast(buf),
    "Permute": lambda buf, world: Permute(buf, ((0, world - 1),)),
}


def _rows(buf: Tensor, world: int) -> Tensor:
    return buf.view(-1)[: buf.numel() // world * world].view(world, -1)


@dataclass(slots=True)
class Timing:
    """One kind of collective. sizes: bytes of the buffer. seconds: what each took. cpu: of one worker, for each byte."""

    sizes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: float = 0.0

    def at(self, size: float) -> float:
        """Seconds of one collective of so many bytes: between measured sizes on a line, beyond them on the last."""
        if len(self.sizes) == 1:
            return self.seconds[0]
        i = min(max(bisect.bisect_left(self.sizes, size), 1), len(self.sizes) - 1)
        low, high = self.sizes[i - 1], self.sizes[i]
        slope = (self.seconds[i] - self.seconds[i - 1]) / (high - low)
        return max(self.seconds[0], self.seconds[i - 1] + slope * (size - low))


@dataclass(slots=True)
class Probe:
    """What was found so far. All workers must ask it in the same way, as asking may send.

    Attributes:
        link: the network. world: workers on it. cores: of all machines, which they share.
        timings: by kind of collective. copying: processor seconds per byte of a gradient that goes into its bucket.
    """

    link: Link
    world: int
    cores: int
    timings: dict[str, Timing] = field(default_factory=dict)
    copying: float = 0.0

    def learn_copying(self) -> None:
        """Measures what DistributedDataParallel does with each gradient: scaling it into its bucket."""
        if self.copying:
            return
        gradient = torch.ones(_COPIED // 4)
        bucket = torch.zeros_like(gradient)
        found = []
        dist.barrier()
        for _ in range(_REPEATS):
            start = time.process_time()
            torch.mul(gradient, 0.5, out=bucket)
            found.append((time.process_time() - start) / _COPIED)
        self.copying = statistics.median(found)

    def learn(self, kind: str, size: float) -> None:
        """Measures collectives of this kind at this size and some smaller ones, unless that has been done."""
        timing = self.timings.setdefault(kind, Timing())
        transport = TorchDistributed()
        for one in (*(least for least in SIZES if least < size), max(SIZES[0], math.ceil(size / 4) * 4)):
            if any(abs(one - known) <= _NEAR * known for known in timing.sizes):
                continue
            if timing.sizes and self._estimate(timing, one) > _MOST_SECONDS:
                break
            seconds, cpu = self._time(transport, kind, one)
            at = bisect.bisect_left(timing.sizes, one)
            timing.sizes.insert(at, one)
            timing.seconds.insert(at, seconds)
            if one >= _SMALL and at == len(timing.sizes) - 1:
                timing.cpu = cpu / one

    def _estimate(self, timing: Timing, size: int) -> float:
        line = 0.0 if self.link.bits_per_second is None else 8 * size / self.link.bits_per_second
        return max(line, timing.seconds[-1] * size / timing.sizes[-1] if timing.sizes[-1] >= _SMALL else 0.0)

    def _time(self, transport: TorchDistributed, kind: str, size: int) -> tuple[float, float]:
        """Seconds (of the slowest worker; the median of some) and processor seconds (their mean) of one."""
        buf = torch.zeros(max(self.world, size // 4))
        found = []
        for repeat in range(1 + _REPEATS):
            dist.barrier()
            start, cpu = time.perf_counter(), time.process_time()
            transport.run(MAKERS[kind](buf, self.world))
            pair = torch.tensor([time.perf_counter() - start, time.process_time() - cpu], dtype=torch.float64)
            slowest, total = pair.clone(), pair
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            dist.all_reduce(total)
            if repeat:
                found.append((slowest[0].item(), total[1].item() / self.world))
        return statistics.median(seconds for seconds, _ in found), statistics.median(cpu for _, cpu in found)
