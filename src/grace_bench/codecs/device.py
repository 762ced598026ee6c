"""Measuring on a GPU: what it launches, how long it is busy, and the share of its memory's bandwidth that a codec uses."""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from grace.contract.compressor import Compressor
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK, Case

_CYCLES = 2e9  # of a GPU in a second, or fewer
_cuda: Any = torch.cuda  # some of which has no types
_SAMPLES, _MOST_SUBMITS = 7, 0.05  # runs; seconds of submitting for which the stream is held back
_REMEMBERED = 4  # runs whose submitting is remembered
_LAUNCHES = ("cudaLaunch", "cuLaunch")  # how the runtime's and the driver's calls begin


def count_launches(run: Callable[[], object]) -> int:
    """Number of kernels that the host launches for this."""
    run()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if event.key.startswith(_LAUNCHES))


class BusyClock:
    """A clock of how long the device is busy, read at the beginning and at the end of what is timed, in turns.

    The stream is held back until the host has submitted all that is timed, as it does in a backward pass, where it runs
    ahead: as long as three times what the last few runs took to submit, so that one that compiled kernels is soon forgotten.
    If the host asks for something there, its waits are counted.
    """

    def __init__(self) -> None:
        self._begins, self._since = False, 0.0
        self._submits = collections.deque([0.0], maxlen=_REMEMBERED)  # seconds of the last runs

    def __call__(self) -> Any:
        """A moment on the stream; a difference of two is in seconds."""
        self._begins = not self._begins
        moment = _Moment()
        if self._begins:
            torch.cuda.synchronize()
            _cuda._sleep(int((1e-3 + 3 * min(max(self._submits), _MOST_SUBMITS)) * _CYCLES))
            moment.event.record()
            self._since = time.perf_counter()
        else:
            self._submits.append(time.perf_counter() - self._since)
            moment.event.record()
        return moment


class _Moment:
    def __init__(self) -> None:
        self.event = _cuda.Event(enable_timing=True)

    def __sub__(self, earlier: _Moment) -> float:
        self.event.synchronize()
        return 1e-3 * float(earlier.event.elapsed_time(self.event))


def busy_seconds(case: Case, clear: Callable[[], None]) -> float:
    """Time that the device is busy with a case: the median of some runs, of which the first does not count."""
    clock = BusyClock()
    return statistics.median([case.seconds(clear, clock) for _ in range(_SAMPLES + 1)][1:])


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


def pass_bytes(operation: str, compressor: Compressor, n: int, payloads: int) -> int | None:
    """Bytes that the passes of the Triton kernels move for that: what :func:`least_bytes` says, and with each pass after the
    first that encoding takes the gradient again, and the memory. None where nobody has counted the passes.
    """
    least, passes = least_bytes(operation, compressor, n, payloads), compressor.passes(n)
    if least is None or passes is None:
        return None
    again = {ENCODE: 4 * n, FEEDBACK: 8 * n, DECODE: 0}
    return least + (passes - 1) * again[operation]


def bandwidth_share(moved: int | None, seconds: float, copy_bytes: int, copy_seconds: float) -> float | None:
    """The bandwidth that an operation reaches, as a share of what a copy of ``copy_bytes`` numbers' bytes reaches."""
    return None if moved is None else (moved / seconds) / (copy_bytes / copy_seconds)
