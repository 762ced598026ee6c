"""The device that a benchmark runs on: found, named, timed, and where each worker's is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from grace.errors import ConfigurationError, out_of_range


class Placement(NamedTuple):
    """device: of a worker's model and batches. backend: torch's network between the workers."""

    device: torch.device
    backend: Literal["gloo", "nccl"]


class CodecTimes(NamedTuple):
    """Times of codecs on a GPU, from a document. path: of it. device: name of the GPU. workers: whose payloads are decoded.
    times: seconds, by method and size. add: seconds of ``y.add_(x)`` for a number.
    """

    path: Path
    device: str
    workers: int
    times: dict[str, dict[int, float]]
    add: float


ON_CPU = Placement(torch.device("cpu"), "gloo")


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
    there = count_devices()
    if int(number or 0) >= there:
        how = "built without CUDA" if torch.version.cuda is None else "built with CUDA"
        raise ConfigurationError(
            f"bench: device={text!r}, and torch {torch.__version__}, {how}, finds {there} CUDA devices here; legal: cpu"
            + "".join(f", cuda:{index}" for index in range(there))
        )
    return torch.device("cuda", int(number or 0))


def count_devices() -> int:
    """Number of CUDA devices that torch finds here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def place(kind: str, local_rank: int, local_world: int, shaped: bool) -> Placement:
    """Place of a worker among those of its machine. If each has a GPU of its own they talk over NCCL, which refuses two on
    one; else, and over a link that is ``shaped``, which NCCL would not pass, over gloo.

    Raises:
        ConfigurationError: ``kind``, cpu or cuda, is not there.
    """
    if device_of(kind).type == "cpu":
        return ON_CPU
    there = count_devices()
    alone = local_world <= there and not shaped
    return Placement(torch.device("cuda", local_rank % there), "nccl" if alone else "gloo")


def move(batch: Any, device: torch.device) -> Any:
    """A tree of tensors, of any shapes, on the device; what is no tensor stays."""
    if device.type == "cpu":
        return batch
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch)


def wait_for(device: torch.device) -> None:
    """Waits until all that was submitted to the device is done: a clock that is read then counts it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def name_device(device: torch.device) -> str:
    """The name of a device in a document: ``cpu``, or that of the GPU."""
    return "cpu" if device.type == "cpu" else str(torch.cuda.get_device_name(device))


def clock_of(device: torch.device) -> Callable[[], float]:
    """Seconds, read when all that was submitted is done."""
    if device.type == "cpu":
        return time.perf_counter

    def now() -> float:
        wait_for(device)
        return time.perf_counter()

    return now
