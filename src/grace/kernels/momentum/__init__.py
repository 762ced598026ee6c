"""Momentum correction: velocities, what was not sent, and which velocities are forgotten."""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.tensor_list import TensorList

__all__ = ["accelerate", "accelerate_many", "forget_many", "forget_sent"]


@operation
def accelerate(x: Tensor, memory: Tensor, momentum: float, nesterov: bool, out: Tensor) -> None:
    """``memory [2, ...]``: u and v. ``out [2, ...]``: ``u' = m u + x, v' = v + u'``; nesterov: ``u' = m (u + x),
    v' = v + u' + x``. x may be of another floating type.
    """


@operation
def forget_sent(u: Tensor, v: Tensor, x: Tensor | None, rest: Tensor) -> None:
    """``u = 0`` where ``rest`` is not ``v + u`` (with x: ``v + u + x``). All of one shape."""


@operation
def accelerate_many(like: Tensor, many: TensorList, rooms: TensorList, momentum: float, *, nesterov: bool) -> None:
    """Updates the memories ``[2, n]``, u and v, of T tensors x ``[1, n]``: the new velocity ``u' = m u + x`` (nesterov:
    ``m (u + x)``) goes to the first rows of their rests ``[2, n]``.

    The new debt is that of :func:`accelerate` in two parts, which an encoder adds up: ``v + u'``, and the xs of ``rooms``
    ``[1, n]``, which may be those of ``many``, become u'; nesterov: ``(v + u') + x``, and the xs of ``rooms`` become x, their
    memories ``v + u'``. ``like`` is a number on the device.
    """


@operation
def forget_many(masked: Tensor, many: TensorList, *, nesterov: bool) -> None:
    """After :func:`accelerate_many`: :func:`forget_sent` for each tensor whose number in ``masked`` int32 ``[T]`` is not 0, of
    whose debt the second row of the rest holds what was not sent. xs are read for nesterov only.
    """
