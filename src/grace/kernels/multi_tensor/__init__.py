"""Tensors of a bucket on their way to rooms where kernels work on them, and back: all of them by one launch.

Letters: T tensors of n_t numbers; their rooms have m_t numbers. Both are a :class:`grace.kernels.tensor_list.TensorList` of
one row each; the storage is a float32 tensor, of any shape, in which the rooms are.
"""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.tensor_list import TensorList

__all__ = [
    "clear_many",
    "fetch_many",
    "finite_many",
    "narrow_many",
    "nonzero_many",
    "pad_many",
    "round_many",
    "scale_many",
    "sum_many",
    "weigh_many",
    "widen_many",
]


@operation
def pad_many(storage: Tensor, many: TensorList, rooms: TensorList) -> None:
    """Sets the xs of rooms, ``[1, m_t]``, m_t >= n_t, to those of ``many``, of the same dtype, and their memories to its
    memories, if it has any; to 0 behind the ends.
    """


@operation
def sum_many(like: Tensor, many: TensorList) -> None:
    """Sets each rest to x plus the memory, or if there are none to x, which may be narrower ``[1, n_t]``, as ``like`` is."""


@operation
def weigh_many(weights: Tensor, share: float, many: TensorList, *, once: bool = True) -> None:
    """Sets each rest to ``share x``, which is rounded to x's type, plus its weight, of ``[T]`` float32, times the memory. This
    sum is rounded once, as by :func:`grace.compute.portable.add_product`, or if not ``once`` the product is rounded first. x
    ``[1, n_t]`` may be narrower, and float32 xs may be the rests.
    """


@operation
def fetch_many(storage: Tensor, rooms: TensorList, many: TensorList) -> None:
    """Sets the xs of ``many``, ``[1, n_t]`` float32, to the first numbers of those of rooms, m_t >= n_t."""


@operation
def scale_many(factors: Tensor, many: TensorList) -> None:
    """Multiplies each x, ``[1, n_t]``, by its factor of ``[T]`` float64, rounded to float32; a narrow x is rounded to nearest
    and even. Where the factor is 1 nothing changes.
    """


@operation
def clear_many(flags: Tensor, many: TensorList) -> None:
    """Sets each x, ``[b, n_t]`` float32, to 0 whose flag, of ``[T]`` bool, is not set."""


@operation
def finite_many(flags: Tensor, many: TensorList) -> Tensor:
    """``[T]`` bool: which xs are finite, of those whose flag, of ``[T]`` bool, is set. x ``[1, n_t]`` may be narrower."""


@operation
def nonzero_many(flags: Tensor, many: TensorList) -> Tensor:
    """``[T]`` bool: which xs, float32, have a number that is not 0, of those whose flag, of ``[T]`` bool, is set."""


@operation
def narrow_many(flags: Tensor, rooms: TensorList, many: TensorList) -> Tensor:
    """Sets the xs of ``many`` to the first numbers of the float32 xs of rooms, m_t >= n_t, rounded to their dtype, to nearest
    and even; and adds to their rests, if there are any, what that loses.

    Returns:
        ``[T]`` bool: which are finite, of those whose flag, of ``[T]`` bool, is set.
    """


@operation
def round_many(message: Tensor, many: TensorList, rounded: TensorList, weight: float) -> Tensor:
    """Sets the xs of ``rounded``, float16 or bfloat16 in ``message [s]``, to those of ``many``, ``[1, n_t]`` float32, times
    weight, to nearest and even.

    Returns:
        ``[T]`` bool: whose products are finite.
    """


@operation
def widen_many(message: Tensor, rounded: TensorList, many: TensorList) -> Tensor:
    """Sets the xs of ``many``, ``[1, n_t]`` float32, to those of ``rounded``, in ``message [s]``; -0 becomes 0, as in a sum.

    Returns:
        ``[T]`` bool: which are finite.
    """
