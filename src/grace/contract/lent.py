"""The resources that the caller of an exchange provides: buffers to work in, and which results it wants back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.contract.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Lent:
    """Resources for an exchange besides x and its state: buffers, and whether to keep the compression error.

    keep_rest: whether what was not sent is wanted, as :attr:`grace.Exchanged.rest`.
    memory, rest: only for methods that take them (:attr:`grace.Method.adds_memory`), and only together, each like x,
        float32 and contiguous. ``memory`` is to be added to x first, and is not written. ``rest`` is storage for what
        was not sent, which becomes :attr:`grace.Exchanged.rest`. x's own storage is then free for the mean.
    applied_as: the dtype that the mean will be cast to before it is applied, if it differs from x's: what the cast
        loses is owed, too. None: x's.
    spare: storage like x (same shape, float32, contiguous) that the method may overwrite, for instance with the mean.
    workspace: memory that is free again after the exchange; None allocates.

    What each storage holds before and after an exchange is drawn at :class:`grace.Loan`.
    """

    keep_rest: bool = False
    memory: Tensor | None = None
    rest: Tensor | None = None
    spare: Tensor | None = None
    workspace: Workspace | None = None
    applied_as: torch.dtype | None = None

    def scratch(self, shape: int | tuple[int, ...], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialized tensor on ``like``'s device, valid until the exchange has ended."""
        if self.workspace is None:
            return torch.empty(shape, dtype=dtype, device=like.device)
        return self.workspace.take(shape, dtype, like.device)

    def borrow_successor(self, old: Tensor) -> Tensor:
        """Uninitialized storage, like ``old``, for the successor of a tensor of the state. Stays valid after the exchange."""
        return torch.empty_like(old) if self.workspace is None else self.workspace.borrow_successor(old)

    def give_back(self, old: Tensor) -> None:
        """Gives back the tensor, of any shape, that has a successor, or the successor that was not needed."""
        if self.workspace is not None:
            self.workspace.give_back(old)
