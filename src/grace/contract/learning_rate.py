"""Memories that follow the learning rate: they owe in units of the gradient, but updates are not in these units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from grace.errors import ConfigurationError
from grace.flags.capturing import refuse_capture
from grace.flags.finite import Flag, on_host

Rate: TypeAlias = float | Tensor  # a 0-d float64 tensor where only the device knows


def lr_ratio(last: Rate, lr: float | None) -> Rate:
    """The factor for a memory when the learning rate goes from ``last`` (0: none yet) to ``lr``.

    Raises:
        ConfigurationError: the learning rate is unknown, negative, infinite or NaN; or work is captured, which would have this
            one for ever.
    """
    if lr is None:
        raise ConfigurationError(
            "a memory follows the learning rate, which is unknown; use attach(..., optimizer=optimizer), or "
            "set handle.lr before each step"
        )
    if not 0 <= lr < math.inf:
        raise ConfigurationError(f"lr={lr!r} is not a learning rate; legal: 0 <= lr < inf")
    refuse_capture("a memory follows the learning rate, which the host decides")
    if isinstance(last, Tensor):
        return torch.where(last > 0, last / lr, 1.0) if lr else 1.0
    return last / lr if last and lr else 1.0


def stack_rates(rates: Sequence[Rate], device: torch.device) -> Tensor:
    """The learning rates of T tensors as one: float64 ``[T]`` on the device, without asking the host. :func:`lr_ratio` and
    :func:`choose_rate` take it too.
    """
    kind = torch.float64
    if on_host(device):
        return torch.tensor([float(rate) for rate in rates], dtype=kind, device=device)
    each = (r if isinstance(r, Tensor) else torch.full((), r, dtype=kind, device=device) for r in rates)
    return torch.stack(tuple(each))


def choose_rates(finite: Tensor, lr: float, lasts: Sequence[Rate]) -> Sequence[Rate]:
    """As :func:`choose_rate`, of T tensors: which were ``finite [T]``."""
    if on_host(finite.device):
        return [choose_rate(fine, lr, last) for fine, last in zip(finite.tolist(), lasts, strict=True)]
    chosen = choose_rate(finite, lr, stack_rates(lasts, finite.device))
    return torch.as_tensor(chosen, dtype=torch.float64, device=finite.device).unbind(0)


def choose_rate(finite: Flag, lr: float, last: Rate) -> Rate:
    """The learning rate of a memory's units, after a step at ``lr`` that changed the memory only if it was ``finite``."""
    if isinstance(finite, Tensor):
        return torch.where(finite, torch.full_like(finite, lr, dtype=torch.float64), last)
    return lr if finite else last


def scale(memory: Tensor, ratio: Rate) -> Tensor:
    """``ratio`` times the memory, of any shape; the memory itself if the ratio is known to be 1."""
    return memory if isinstance(ratio, float) and ratio == 1 else memory * ratio
