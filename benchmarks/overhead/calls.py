"""The cost of single calls for the host: what a bucket's time consists of, so that two hosts can be compared.

Each sample is the mean of many calls, on a stream that is free, and on one that is held back until all are submitted, as in a
backward pass, where the host runs ahead. On the CPU there is the first only, and nothing of graphs, events and launches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.overhead.ladder import make_row
from grace.collectives import AllGather
from grace.transports.torch_distributed import TorchDistributed

_CALLS = 100  # of a sample; a stream that is held back takes some thousand
_SLEEP = 50_000_000  # cycles, enough for the host to submit them
_cuda: Any = torch.cuda  # some of which has no types
Call = Callable[[], object]


def measure(samples: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """A row for each call, in microseconds, as soon as it is measured. There is a process group of one worker."""
    for name, call in _calls(device):
        for _ in range(_CALLS):
            call()
        for held in (False,) if device.type == "cpu" else (False, True):
            values = [_microseconds(call, device, held) for _ in range(samples)]
            where = "" if device.type == "cpu" else ", the stream held back" if held else ", the stream free"
            yield make_row(f"{name}{where}", values, "us", 0.0)


def _calls(device: torch.device) -> Iterator[tuple[str, Call]]:
    x = torch.zeros(1000, device=device)
    yield "a Python call", _nothing
    yield "x.add_(1), 1,000 numbers", lambda: x.add_(1)
    yield "torch.empty(1,000)", lambda: torch.empty(1000, device=device)
    transport, gathered = TorchDistributed(), x.new_empty(1, 1000)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    yield "torch's all-gather, one rank", lambda: gather(gathered.view(-1), x)
    yield "an all-gather of Grace's transport, one rank", lambda: transport.run(AllGather(x, into=gathered))
    if device.type == "cpu":
        return
    stream, event = _cuda.current_stream(device), _cuda.Event()

    def wait() -> None:
        event.record(stream)
        stream.wait_event(event)

    yield "an event: record and wait", wait
    yield from _launches(x)
    for nodes in (4, 15):
        graph = _cuda.CUDAGraph()
        with _cuda.graph(graph):
            for _ in range(nodes):
                x.add_(1)
        yield f"a replay of a graph of {nodes} nodes", graph.replay


def _launches(x: torch.Tensor) -> Iterator[tuple[str, Call]]:
    """A launch of a small kernel through Triton, and through Grace, if Triton is there."""
    try:
        from grace.kernels import add_scaled_
    except ImportError:
        return
    y = torch.zeros_like(x)
    yield "a launch of a Triton kernel by Grace (add_scaled_)", lambda: add_scaled_(x, y, 0.0)


def _nothing() -> None:
    """Does nothing."""


def _microseconds(call: Call, device: torch.device, held: bool) -> float:
    if device.type != "cpu":
        torch.cuda.synchronize(device)
        if held:
            _cuda._sleep(_SLEEP)
    start = time.perf_counter()
    for _ in range(_CALLS):
        call()
    spent = time.perf_counter() - start
    if device.type != "cpu":
        torch.cuda.synchronize(device)
    return 1e6 * spent / _CALLS
