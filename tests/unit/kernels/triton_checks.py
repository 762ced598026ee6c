"""What the tests of Triton kernels share: Triton's interpreter, and what must be equal to the bit."""

from __future__ import annotations

import importlib
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
    patch_once(monkeypatch)


def patch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter puts functions of its own into the language for each launch, and again for each call of one kernel
    by another, where they are there already: a third of its time. Here it does so for launches only.
    """
    module: Any = importlib.import_module("triton.runtime.interpreter")
    patch, launched = module._patch_lang, list[Any]()

    def patch_language(function: Any) -> Any:
        if launched:  # a call within a launch, which restores nothing
            return None
        scope = patch(function)
        restore = scope.restore

        def end() -> None:
            launched.clear()
            restore()

        scope.restore = end
        launched.append(scope)
        return scope

    monkeypatch.setattr(module, "_patch_lang", patch_language)


def agree(draw: Callable[[], list[Tensor]], what: Any) -> None:
    """``draw`` gives the same bits whichever of the two runs."""
    with backends.using("reference"):
        want = draw()
    with backends.using("triton"):
        got = draw()
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        assert same_bits(a, b), (what, k)
