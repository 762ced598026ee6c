"""What the tests of Triton kernels share: Triton's interpreter, and what must be equal to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from grace.compute import backends
from tests.unit.kernels.native_checks import same_bits

# What is too slow for `make test`, in the interpreter. A defect that is caught there: see tests/tiers.py.
night = pytest.mark.night("a Triton kernel that leaves out the memory")


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of this file run in Triton's interpreter, also on the CPU."""
    monkeypatch.setenv(backends.INTERPRETER, "1")


def agree(draw: Callable[[], list[Tensor]], what: Any) -> None:
    """``draw`` gives the same bits whichever of the two runs."""
    with backends.using("reference"):
        want = draw()
    with backends.using("triton"):
        got = draw()
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        assert same_bits(a, b), (what, k)
