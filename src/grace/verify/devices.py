"""True if a method does on a device what it does on the CPU in plain torch: the same means and memories, to the bit.

Ranks on both agree then. Methods whose own parts are torch operations, such as singular vectors or sums without an order, do
so to rounding only.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from grace.compute import backends
from grace.contract.method import Method
from grace.flags.finite import cpu_as_accelerator
from grace.verify.inputs import UGLY, Make
from grace.verify.running import leaves, run, same_bits

Sameness = Literal["bits", "rounding", "different"]
_CPU = torch.device("cpu")
_RTOL = 2e-4


def compare_devices(
    method: Method[Any],
    device: torch.device,
    inputs: Mapping[str, Make] = UGLY,
    *,
    workers: int = 3,
    steps: int = 2,
) -> dict[str, Sameness]:
    """For each kind of input, how alike some steps are on this device and in plain torch on the CPU: "bits", where all means
    and states have the same; "rounding", where the means differ by no more than a share of 0.0002 of the largest number; or
    "different".
    """
    likeness: dict[str, Sameness] = {}
    for name, make in inputs.items():
        xs = [make(rank) for rank in range(workers)]
        with backends.using("reference"):
            want, kept = _go(method, xs, _CPU, steps)
        got, held = _go(method, xs, device, steps)
        bits = len(kept) == len(held) and all(map(same_bits, want + kept, got + held))
        likeness[name] = "bits" if bits else "rounding" if all(map(_is_close, got, want)) else "different"
    return likeness


def _go(method: Method[Any], xs: list[Tensor], device: torch.device, steps: int) -> tuple[list[Tensor], list[Tensor]]:
    """The means of all steps and workers, and the tensors of their states, on the CPU."""
    states, means, kept = None, list[Tensor](), list[Tensor]()
    with cpu_as_accelerator() if device.type == "cpu" else nullcontext():  # flags are tensors on both
        for step in range(steps):
            done = run(method, [x.to(device) for x in xs], states, step=step)
            states = [out.state for out in done]
            means += [out.mean.cpu().clone() for out in done]
            kept += [leaf.cpu().clone() for leaf in leaves(tuple(states))]
    return means, kept


def _is_close(got: Tensor, want: Tensor) -> bool:
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    largest = float(want.abs().max()) if want.numel() else 0.0
    return torch.allclose(got.double(), want.double(), rtol=_RTOL, atol=_RTOL * largest, equal_nan=True)
