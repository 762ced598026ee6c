"""Results that an accelerator finds in a step; the host reads them when the step after the next one begins."""

from __future__ import annotations

import collections
from dataclasses import dataclass

import torch
from torch import Tensor

from grace.flags.refusals import Problem, Refusals


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
    """Flags of steps that the host has not read yet: whether each tensor was finite, and whether what the network brought was
    legal. They travel to the host while it goes on.

    Those of the last two steps are under way: at the beginning of a step the device may still be busy with the exchange of
    the one before, and the host, which reads no later flags than those of the step before that, need not wait for it.

    flags: (step, tensor's name, 0-d bool tensor) of the running step. owing: names of those to which a debt was added.
    refusals: collects what is refused in that step.
    """

    def __init__(self) -> None:
        self.flags: list[tuple[int, str, Tensor]] = []
        self.owing: set[str] = set()
        self.refusals = Refusals()
        self._sent: collections.deque[_Sent | None] = (
            collections.deque()
        )  # of the steps that have ended; None: no flags
        self._letters: list[_Letter] = []  # that were read

    @property
    def ended(self) -> int:
        """The number of steps that have ended and whose flags have not been read."""
        return len(self._sent)

    def send(self) -> None:
        """The step has ended: its flags go to the host, which does not wait for them."""
        if not (self.flags or self.refusals.checks):
            self._sent.append(None)
            return
        parts = [fine.view(-1) for fine, _ in self.refusals.checks]
        if self.flags:
            parts.insert(0, torch.stack([flag for *_, flag in self.flags]))
        flags = parts[0] if len(parts) == 1 else torch.cat(parts)
        letter = self._letters.pop() if self._letters else _Letter()
        letter.write(flags)
        names = [(step, name) for step, name, _ in self.flags]
        self._sent.append(_Sent(letter, names, self.owing, self.refusals.checks))
        self.flags, self.owing, self.refusals = [], set(), Refusals()

    def take_paid(self) -> list[str]:
        """Tensors to which a debt was added and whose means were finite, in all steps that have ended, each time once. The
        host waits for these steps, but not where nothing was owed.
        """
        out = []
        for sent in self._sent:
            if sent is not None and sent.owing:
                answers = zip(sent.names, sent.letter.read(), strict=False)
                out += [name for (_, name), finite in answers if finite and name in sent.owing]
                sent.owing = set()
        return out

    def read(self) -> list[tuple[int, str, bool]]:
        """(step, name, whether it was finite) of the first step that has ended and has not been read.

        Raises:
            PayloadError, or a subclass: something that the network brought was refused.
        """
        sent = self._sent.popleft()
        if sent is None:
            return []
        answers = sent.letter.read()
        self._letters.append(sent.letter)
        at = len(sent.names)
        for fine, problem in sent.problems:
            at, begin = at + fine.numel(), at
            if not all(answers[begin:at]):
                raise problem()
        return [(step, name, finite) for (step, name), finite in zip(sent.names, answers, strict=False)]


@dataclass
class _Sent:
    """Flags of a step that are under way: first those of tensors, then those of refusals, each of which may be several."""

    letter: _Letter
    names: list[tuple[int, str]]
    owing: set[str]
    problems: list[tuple[Tensor, Problem]]
