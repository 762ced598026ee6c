"""Results that an accelerator finds in a step; the host reads them when the next one begins."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.flags.refusals import Refusals


class _Letter:
    """Flags on their way to the host, in memory that is made once: pinned memory and events cost a question to the driver."""

    def __init__(self) -> None:
        self._room: Tensor | None = None
        self._count = 0
        self._arrived: torch.cuda.Event | None = None

    def write(self, flags: Tensor) -> None:
        """``flags [n]`` set out; the host does not wait for them."""
        self._count = flags.numel()
        if self._room is None or self._room.numel() < self._count:
            self._room = torch.empty(2 * self._count, dtype=torch.bool, pin_memory=flags.is_cuda, device="cpu")
        self._room[: self._count].copy_(flags, non_blocking=True)
        if flags.is_cuda:
            if self._arrived is None:
                self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(flags.device))

    def read(self) -> list[bool]:
        """The flags; waits until they have arrived, but for no later work."""
        if self._arrived is not None:
            self._arrived.synchronize()
        assert self._room is not None
        answers: list[bool] = self._room[: self._count].tolist()
        return answers


class PendingFlags:
    """Flags of a step that the host has not read yet: whether each tensor was finite, and whether what the network brought was
    legal. They travel to the host while it goes on.

    flags: (step, tensor's name, 0-d bool tensor) of the running step. refusals: collects what is refused in that step.
    """

    def __init__(self) -> None:
        self.flags: list[tuple[int, str, Tensor]] = []
        self.refusals = Refusals()
        self._names: list[tuple[int, str]] = []
        self._problems = self.refusals.checks
        self._letter = _Letter()
        self._sent = False

    @property
    def ready(self) -> bool:
        """True if flags of a step that has ended were sent, but have not been read."""
        return self._sent

    def send(self) -> None:
        """The step has ended: its flags go to the host, which does not wait for them."""
        if not (self.flags or self.refusals.checks):
            return
        parts = [fine.view(-1) for fine, _ in self.refusals.checks]
        if self.flags:
            parts.insert(0, torch.stack([flag for *_, flag in self.flags]))
        flags = parts[0] if len(parts) == 1 else torch.cat(parts)
        self._names, self._problems = [(step, name) for step, name, _ in self.flags], self.refusals.checks
        self.flags, self.refusals = [], Refusals()
        self._letter.write(flags)
        self._sent = True

    def read(self) -> list[tuple[int, str, bool]]:
        """(step, name, whether it was finite) of the last step that was sent.

        Raises:
            PayloadError, or a subclass: something that the network brought was refused.
        """
        if not self._sent:
            return []
        self._sent = False
        answers = self._letter.read()
        names = self._names
        at = len(names)
        for fine, problem in self._problems:
            at, begin = at + fine.numel(), at
            if not all(answers[begin:at]):
                raise problem()
        return [(step, name, finite) for (step, name), finite in zip(names, answers[: len(names)], strict=True)]
