"""Shared parts of the tests of this folder: whether there is a GPU, and when nothing may wait for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
import torch

from grace.compute import backends

T = TypeVar("T")

HERE = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0)
needs_gpu = pytest.mark.skipif(not HERE, reason="needs a CUDA device")


def few(cases: Iterable[T]) -> list[T]:
    """All of them; where all are skipped, the first, which says so."""
    return list(cases)[: None if HERE else 1]


@pytest.fixture(params=["triton", "native"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Plain torch operations on the device, and Triton's kernels."""
    with backends.using(request.param):
        yield request.param


@contextmanager
def unsynchronized() -> Iterator[None]:
    """Every wait for the stream is an error."""
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which says that some waits are not detected
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
