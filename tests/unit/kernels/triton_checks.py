"""Shared parts of the tests of Triton kernels: Triton's interpreter, and what must be equal to the bit."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from grace.compute import backends
from grace.errors import PayloadError
from tests.unit.kernels import launched
from tests.unit.kernels.native_checks import same_bits

# What is too slow for `make test`, in the interpreter. A defect that is caught there: see tests/tiers.py.
night = pytest.mark.night("a Triton kernel that leaves out the memory")

# Of tiles of selection: a program that goes on less often through what it reads is faster here.
SELECTION = {"_GROUP": 2, "_CHUNK": 2048}
# How a test says that a kernel is wrong. What a mutant does not write may be anything, and be refused when it is read.
CAUGHT = (AssertionError, pytest.fail.Exception, PayloadError)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Kernels of this file run in Triton's interpreter, also on the CPU; how they are launched is in the file of ways."""
    monkeypatch.setenv(backends.INTERPRETER, "1")
    for name, number in SELECTION.items():
        monkeypatch.setattr(f"grace.kernels.selection.triton.candidates.{name}", number)
    patch_once(monkeypatch)
    leave_out_what_has_no_effect(monkeypatch)
    with launched.recorded() as launches:
        yield
    if request.node.get_closest_marker("night") is None:
        launched.check(launched.name_of(request.node), launches)


def let_agree(executor: Any, args: Sequence[Any]) -> None:
    """Sets the flags of all ranks as they should be, if a kernel of a launch that does not run reads them."""
    if executor.fn.__name__ == "_agree":
        args[executor.arg_names.index("flags")].fill_(True)


def patch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter puts functions of its own into the language for each launch, and again for each call of one kernel
    by another, where they are there already: nearly half of its time. Here it does so once in a launch.

    With all that follows, kernels take a quarter of the time. Waits for a scope that outlives a call: it is entered and left
    for each since triton-lang/triton#8735. No upstream report of what that costs was found.
    """
    module: Any = importlib.import_module("triton.runtime.interpreter")
    patch, scopes, done = module._patch_lang, list[Any](), set[int]()

    @functools.cache
    def find_languages(function: Any) -> set[int]:
        return {id(value) for value in function.__globals__.values() if value is module.tl or value is module.tl.core}

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


def leave_out_what_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its option ``debug`` the interpreter computes whether integers overflow, and throws the answer away; and what
    follows from a type or a shape it computes for each tensor anew. Half of its time goes there.

    The option waits for triton-lang/triton#8838, which takes it apart from ``debug`` (closed; facebookexperimental/triton#769
    describes the same). Of ``_get_np_dtype``, which makes its table in each call, and of ``tensor.__init__``, which makes a
    constexpr of each length, no upstream report was found.
    """
    module: Any = importlib.import_module("triton.runtime.interpreter")
    options = module.interpreter_builder.options
    assert not options.debug
    monkeypatch.setattr(module.interpreter_builder, "options", replace(options, sanitize_overflow=False))
    find, known, core = module._get_np_dtype, dict[str, Any](), module.tl.core

    def find_dtype(kind: Any) -> Any:
        scalar = kind.element_ty if isinstance(kind, core.block_type) else kind
        if scalar.name not in known:
            known[scalar.name] = find(scalar)
        return known[scalar.name]

    @functools.cache
    def describe(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.constexpr(math.prod(shape)), core.tuple([core.constexpr(length) for length in shape])

    def make(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.numel, self.shape = describe(kind.shape if kind.is_block() else ())

    monkeypatch.setattr(module, "_get_np_dtype", find_dtype)
    monkeypatch.setattr(core.tensor, "__init__", make)
    look_at_each_shape_once(monkeypatch, core)


def look_at_each_shape_once(monkeypatch: pytest.MonkeyPatch, core: Any) -> None:
    """Every operation makes the type of its result, and checks its shape and compares it with others, one length after the
    other: a fifth of what is left of the interpreter's time. No upstream report was found of ``block_type.__init__``, which
    makes its name and checks its lengths each time, nor of ``tuple.__eq__``, which compares constexprs one by one.
    """
    make, equal, known = core.block_type.__init__, core.tuple.__eq__, dict[Any, Any]()
    answers = {answer: core.constexpr(answer) for answer in (False, True)}

    def make_type(self: Any, element: Any, shape: Any) -> None:
        lengths = tuple(shape)
        if lengths not in known:
            make(self, element, shape)
            known[lengths] = self.shape, self.numel, str(self.shape)
        self.element_ty = element
        self.shape, self.numel, text = known[lengths]
        self.name = f"<{text}, {element}>"

    def compare(self: Any, other: Any) -> Any:
        if self is other:
            return answers[True]
        lengths = getattr(other, "values", other)
        return answers[self.values == lengths] if isinstance(lengths, list) else equal(self, other)

    monkeypatch.setattr(core.block_type, "__init__", make_type)
    monkeypatch.setattr(core.tuple, "__eq__", compare)


def agree(draw: Callable[[], list[Tensor]], what: Any) -> None:
    """``draw`` gives the same bits whichever of the two runs."""
    with backends.using("reference"):
        want = draw()
    with backends.using("triton"):
        got = draw()
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        assert same_bits(a, b), (what, k)
