"""What an accelerator finds in a step; the host reads it when the next one begins."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.flags.refusals import Refusals


class PendingFlags:
    """Flags of a step that the host has not read yet: whether each tensor was finite, and whether what the network brought was
    legal. They travel to the host while it goes on.

    flags: (step, tensor's name, 0-d bool tensor) of the running step. refusals: collects what is refused in that step.
    """

    def __init__(self) -> None:
        self.flags: list[tuple[int, str, Tensor]] = []
        self.refusals = Refusals()
        self._names: list[tuple[int, str]] = []
        self._problems = self.refusals.found
        self._answers: Tensor | None = None  # on the host, perhaps still on the way
        self._arrived: torch.cuda.Event | None = None

    @property
    def ready(self) -> bool:
        """Whether flags of a step that has ended were sent, but have not been read."""
        return self._answers is not None

    def send(self) -> None:
        """The step has ended: its flags go to the host, which does not wait for them."""
        if not (self.flags or self.refusals.found):
            return
        flags = torch.stack([flag for *_, flag in self.flags] + [fine for fine, _ in self.refusals.found])
        self._names, self._problems = [(step, name) for step, name, _ in self.flags], self.refusals.found
        self.flags, self.refusals = [], Refusals()
        if flags.is_cuda:
            self._answers = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=True).copy_(flags, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(flags.device))
        else:
            self._answers, self._arrived = flags.cpu(), None

    def read(self) -> list[tuple[int, str, bool]]:
        """(step, name, whether it was finite) of the last step that was sent.

        Raises:
            PayloadError, or a subclass: something that the network brought was refused.
        """
        if self._answers is None:
            return []
        if self._arrived is not None:
            self._arrived.synchronize()
        answers: list[bool] = self._answers.tolist()
        self._answers = None
        names = self._names
        for fine, (_, problem) in zip(answers[len(names) :], self._problems, strict=True):
            if not fine:
                raise problem()
        return [(step, name, finite) for (step, name), finite in zip(names, answers[: len(names)], strict=True)]
