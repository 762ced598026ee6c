"""Measuring on a GPU: its clock, what it launches, and the share of its memory's bandwidth that a codec uses."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from grace.contract.compressor import Compressor
from grace.errors import ConfigurationError, out_of_range
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK

_LAUNCHES = ("cudaLaunch", "cuLaunch")  # how the runtime's and the driver's calls begin


def device_of(text: str) -> torch.device:
    """``cpu``, ``cuda`` or ``cuda:1`` as a device of this machine.

    Raises:
        ConfigurationError: it is none of them, or this machine does not have it.
    """
    kind, _, number = text.partition(":")
    if kind not in ("cpu", "cuda") or (number and (kind == "cpu" or not number.isdecimal())):
        raise out_of_range("bench", "device", text, "cpu, cuda, cuda:0, cuda:1, ...")
    if kind == "cpu":
        return torch.device("cpu")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= there:
        how = "built without CUDA" if torch.version.cuda is None else "built with CUDA"
        raise ConfigurationError(
            f"bench: device={text!r}, and torch {torch.__version__}, {how}, finds {there} CUDA devices here; legal: cpu"
            + "".join(f", cuda:{index}" for index in range(there))
        )
    return torch.device("cuda", int(number or 0))


def name_device(device: torch.device) -> str:
    """What a document calls it: ``cpu``, or the name of the GPU."""
    return "cpu" if device.type == "cpu" else str(torch.cuda.get_device_name(device))


def clock_of(device: torch.device) -> Callable[[], float]:
    """Seconds, read when all that was submitted is done."""
    if device.type == "cpu":
        return time.perf_counter

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def count_launches(run: Callable[[], object]) -> int:
    """How many kernels the host launches for this."""
    run()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if event.key.startswith(_LAUNCHES))


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
