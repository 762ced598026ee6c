"""The CUDA devices of this machine, and whether Triton's kernels can run there."""

from __future__ import annotations

import functools
import re
from importlib import metadata
from typing import Any, Final

import torch

LEAST_CAPABILITY: Final = (7, 0)  # what Triton compiles for
LEAST_TRITON: Final = (3, 6)  # before it quotients of subnormal size become zero
TESTED_TRITON: Final = ("3.6.0", "3.7.1")  # on a GPU, and in the interpreter and the compiler


def list_devices() -> list[dict[str, Any]]:
    """Name, capability and memory in bytes of each CUDA device."""
    if not torch.cuda.is_available():
        return []
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {"name": device.name, "capability": f"{device.major}.{device.minor}", "memory": int(device.total_memory)}
        for device in devices
    ]


@functools.cache
def find_triton_problem() -> str | None:
    """The reason why Triton's kernels cannot run on the CUDA devices of this machine; None if nothing speaks against it.

    The first call compiles a small kernel, runs it on 1,024 numbers of the current device, and compares.
    """
    if torch.version.hip is not None:
        return "this torch is for ROCm, on which they have never been tested"
    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        if capability < LEAST_CAPABILITY:
            wanted = ".".join(map(str, LEAST_CAPABILITY))
            return f"CUDA device {index} has the capability {'.'.join(map(str, capability))}, and Triton needs {wanted}"
    if (version := _triton_version()) < LEAST_TRITON:
        return f"triton {'.'.join(map(str, version))} makes zeros of quotients of subnormal size; legal: 3.6 and newer"
    try:
        from grace.compute.triton import triton_adds_up

        right = triton_adds_up(torch.device("cuda", torch.cuda.current_device()))
    except Exception as error:  # a compiler that does not fit raises whatever it likes
        return f"the Triton that is installed fails with this torch and device: {type(error).__name__}: {error}".split(
            "\n"
        )[0]
    return None if right else "the Triton that is installed computes something else than torch on this device"


def _triton_version() -> tuple[int, ...]:
    """The first two numbers of its version; of one that nobody knows, the least that is legal."""
    try:
        parts = re.findall(r"\d+", metadata.version("triton"))
    except metadata.PackageNotFoundError:  # built with torch, under another name
        parts = []
    return tuple(map(int, parts[:2])) or LEAST_TRITON
