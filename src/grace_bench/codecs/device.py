"""Measuring on a GPU: what it launches, how long it is busy, and the share of its memory's bandwidth that a codec uses."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from grace.contract.compressor import Compressor
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK, Case

_CYCLES = 2e9  # of a GPU in a second, or fewer
_SAMPLES = 7
_LAUNCHES = ("cudaLaunch", "cuLaunch")  # how the runtime's and the driver's calls begin


def count_launches(run: Callable[[], object]) -> int:
    """How many kernels the host launches for this."""
    run()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if event.key.startswith(_LAUNCHES))


def busy_seconds(case: Case, clear: Callable[[], None]) -> float:
    """How long the device is busy with a case, the median of some runs, between two events on its stream.

    The stream is held back until the host has submitted all of it, as it does in a backward pass, where it runs ahead. If the
    case asks the host, waits for the answer are counted.
    """
    found: list[tuple[float, float]] = []
    for _ in range(_SAMPLES + 1):
        case.prepare()
        clear()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(int((1e-3 + 3 * (found[-1][1] if found else 0.0)) * _CYCLES))  # type: ignore[no-untyped-call]
        start.record()
        before = time.perf_counter()
        case.run()
        submitted = time.perf_counter() - before
        end.record()
        torch.cuda.synchronize()
        found.append((1e-3 * start.elapsed_time(end), min(submitted, 0.05)))
    return statistics.median(seconds for seconds, _ in found[1:])


def least_bytes(operation: str, compressor: Compressor, n: int, payloads: int) -> int | None:
    """Bytes that an operation on n numbers reads and writes at least; None where that depends on the data.

    Encoding reads the gradient and writes the wire; with a memory it reads and writes that, too. Decoding reads the wires and
    writes the sum.
    """
    payload = compressor.facts(n).payload
    if payload is None:
        return None
    known = {ENCODE: 4 * n + payload, FEEDBACK: 12 * n + payload, DECODE: 4 * n + payloads * payload}
    return known.get(operation)


def bandwidth_share(moved: int | None, seconds: float, copy_bytes: int, copy_seconds: float) -> float | None:
    """The bandwidth that an operation reaches, as a share of what a copy of ``copy_bytes`` numbers' bytes reaches."""
    return None if moved is None else (moved / seconds) / (copy_bytes / copy_seconds)
