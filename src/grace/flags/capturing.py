"""Whether work is captured into a graph, to be done again and again without Python, and what cannot be captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from grace.errors import ConfigurationError

CAPTURABLE = (
    "legal: what sends as many bytes each time, without random numbers, such as topk, efsignsgd, powersgd, bf16"
)
_pretended = False


def capturing() -> bool:
    """Whether what this thread submits to its current stream is captured."""
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


def refuse_capture(what: str) -> None:
    """Refuses, while work is captured, what a graph cannot repeat.

    Raises:
        ConfigurationError: work is captured; ``what`` says what cannot be, as a sentence.
    """
    if capturing():
        raise ConfigurationError(f"{what}: it cannot be captured into a graph; {CAPTURABLE}")
