"""True if work is captured into a graph, to be done again and again without Python, and what cannot be captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from grace.errors import ConfigurationError

CAPTURABLE = "legal: what sends as many bytes each time, such as topk, efsignsgd, qsgd, powersgd, bf16"
_pretended = False


class CapturedStep(int):
    """The step at which work is captured, and where its replays find theirs.

    clock: int32 ``[1]`` on the device: the step of the replay that runs, as a 32-bit word.
    """

    clock: Tensor

    @classmethod
    def at(cls, step: int, clock: Tensor) -> CapturedStep:
        """The step, with its clock, int32 ``[1]``."""
        out = cls(step)
        out.clock = clock
        return out


def step_word(step: int, device: torch.device) -> int | Tensor:
    """A step as the int32 that kernels on this device take; while work is captured, where replays find it.

    Raises:
        ConfigurationError: replays would find it on another device.
    """
    if isinstance(step, CapturedStep):
        if step.clock.device != device:
            refuse_capture("random numbers are drawn on the host, which takes no part in replays")
        return step.clock
    word = int(step) & 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def capturing() -> bool:
    """True if what this thread submits to its current stream is captured."""
    there: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # else asking would begin with the device
    return _pretended or (there and bool(torch.cuda.is_current_stream_capturing()))


@contextlib.contextmanager
def pretend_capturing() -> Iterator[None]:
    """A context in which it is said that work is captured. For tests without a GPU."""
    global _pretended
    _pretended = True
    try:
        yield
    finally:
        _pretended = False


def has_begun(step: int, start: int, what: str) -> bool:
    """True if something that begins at step ``start`` has begun: replays of a step before would never begin.

    Raises:
        ConfigurationError: a step before ``start`` is captured; ``what`` is the knob that says when it begins.
    """
    if step < start and isinstance(step, CapturedStep):
        refuse_capture(
            f"{what}: at step {int(step)} it has not begun, and replays never would; capture a step from {start} on"
        )
    return step >= start


def refuse_capture(what: str) -> None:
    """Refuses, while work is captured, what a graph cannot repeat.

    Raises:
        ConfigurationError: work is captured; ``what`` says what cannot be, as a sentence.
    """
    if capturing():
        raise ConfigurationError(f"{what}: it cannot be captured into a graph; {CAPTURABLE}")
