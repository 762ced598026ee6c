"""A stand-in for a parameter's ``.grad`` while the gradient is exchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.errors import GraceError


class PendingGradient(Tensor):
    """A gradient that another thread is about to replace by its mean. Reading or writing it is an error: clipping, unscaling
    or a log would see this rank's numbers, or a mixture.

    The autograd engine still accumulates into it, so that a hook can say what happened.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Refuses every operation.

        Raises:
            GraceError: always.
        """
        raise GraceError(
            "this gradient is being exchanged, and is not the mean yet: call optimizer.synchronize() before gradients are "
            "read, clipped or unscaled (scaler.unscale_, scaler.step), and optimizer.step() after"
        )


def placeholder(gradient: Tensor) -> PendingGradient:
    """Takes the gradient's place, whatever its shape; the same memory."""
    return torch.Tensor.as_subclass(gradient, PendingGradient)
