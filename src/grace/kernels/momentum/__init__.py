"""Momentum correction: velocities, what was not sent, and which velocities are forgotten."""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation

__all__ = ["accelerate", "forget_sent"]


@operation
def accelerate(x: Tensor, memory: Tensor, momentum: float, nesterov: bool, out: Tensor) -> None:
    """``memory [2, ...]``: u and v. ``out [2, ...]``: ``u' = m u + x, v' = v + u'``; nesterov: ``u' = m (u + x),
    v' = v + u' + x``. x may be of another floating type.
    """


@operation
def forget_sent(u: Tensor, v: Tensor, x: Tensor | None, rest: Tensor) -> None:
    """``u = 0`` where ``rest`` is not ``v + u`` (with x: ``v + u + x``). All of one shape."""
