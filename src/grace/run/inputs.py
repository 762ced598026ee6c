"""Inputs of an exchange: dense tensors of real numbers, all on one device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grace.errors import InputError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_tensor(name: str, x: Tensor) -> None:
    """Refuses what Grace does not exchange; a tensor may have any shape.

    Raises:
        InputError: a sparse tensor, or one that is not f16, bf16, f32 or f64.
    """
    if x.layout != torch.strided:
        raise InputError(f"{name!r} is {x.layout}; Grace exchanges dense tensors: use sparse=False, or detach this one")
    if x.dtype not in DTYPES:
        legal = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        hint = "; torch.view_as_real makes real numbers of complex ones" if x.is_complex() else ""
        raise InputError(f"{name!r} is {str(x.dtype).removeprefix('torch.')}; legal: {legal}{hint}")


def refuse_devices(tensors: Mapping[str, Tensor]) -> None:
    """Refuses tensors, of any shapes, on several devices: they are sent together. Those without numbers (meta) fit all.

    Raises:
        InputError: names two of them.
    """
    places: dict[torch.device, str] = {}
    for name, x in tensors.items():
        if x.device.type != "meta":
            places.setdefault(x.device, name)
    if len(places) > 1:
        (a, first), (b, second), *_ = places.items()
        raise InputError(
            f"{first!r} is on {a} and {second!r} on {b}; a model is exchanged from one device: move it to one "
            f"(model.to({str(a)!r})), or let a process have each device"
        )
