"""What the tests of Triton kernels share: Triton's interpreter, and what must be equal to the bit."""

from __future__ import annotations

import functools
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
    by another, where they are there already: nearly half of its time. Here it does so once in a launch.
    """
    module: Any = importlib.import_module("triton.runtime.interpreter")
    patch, scopes, done = module._patch_lang, list[Any](), set[int]()

    @functools.cache
    def find_languages(function: Any) -> set[int]:
        return {id(one) for one in function.__globals__.values() if one is module.tl or one is module.tl.core}

    def restore_all(own: Callable[[], None]) -> None:
        while len(scopes) > 1:
            scopes.pop().restore()
        scopes.clear()
        done.clear()
        own()

    def patch_language(function: Any) -> Any:
        if scopes and find_languages(function) <= done:
            return None  # a call within a launch, whose scope nobody looks at
        scope = patch(function)
        if not scopes:
            scope.restore = functools.partial(restore_all, scope.restore)
        scopes.append(scope)
        done.update(find_languages(function))
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
