"""A plugin of pytest: native kernels are those that native/tests/python.sh has built with sanitizers, which see what is read
or written beside a tensor, whoever has said how long it is.

    python -m tests.sanitized    reads two numbers past a tensor, which ends the process if sanitizers look
"""

from __future__ import annotations

import torch

from grace import kernels
from grace.compute import native
from tests.tiers import ROOT

LIBRARY = ROOT / "build/native-address/libgrace_kernels.so"


def pytest_configure() -> None:
    library = native.open_library(str(LIBRARY))
    assert not isinstance(library, str), library
    native._loaded = library


if __name__ == "__main__":
    pytest_configure()
    kernels.all_finite(torch.zeros(3))  # a backend is chosen
    native.c.finite(torch.ones(5).data_ptr(), 7, 1)
