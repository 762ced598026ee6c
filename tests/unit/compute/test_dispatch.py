"""Choice of the implementation of an operation."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import grace
from grace.compute import backends, dispatch

FAMILY = '''
from __future__ import annotations
from torch import Tensor
from grace.compute.dispatch import operation

@operation
def double(n: int, x: Tensor, *, by: int = 1) -> str:
    """Says who did it."""

@operation
def halve(x: Tensor) -> str:
    """Says who did it."""
'''
DOUBLE = "def double(n, x, *, by=1): return f'{__name__} {n} {by}'\n"
REFERENCE = DOUBLE + "def halve(x): return __name__\n"


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new family of two operations, with a reference; nobody has said which backend to use."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    folder = tmp_path / "a_family"
    folder.mkdir()
    (folder / "__init__.py").write_text(FAMILY)
    (folder / "reference.py").write_text(REFERENCE)
    dispatch._find.cache_clear()
    with backends.using(backends.available()[-1]):
        yield folder
    for name in [name for name in sys.modules if name.startswith("a_family")]:
        del sys.modules[name]
    dispatch._find.cache_clear()


def imported() -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module("a_family")


def pretend(monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """These modules serve these devices, whatever this machine has."""
    monkeypatch.setattr(backends, "current", backends.Backend("native-base", "a test", modules))


def test_without_anything_faster_the_reference_runs(family: Path) -> None:
    ops = imported()
    for device in ("cpu", "meta"):
        x = torch.empty(1, device=device)
        assert ops.double(3, x) == "a_family.reference 3 1"
        assert ops.double(3, x=x, by=2) == "a_family.reference 3 2"
        assert ops.halve(x) == "a_family.reference"


def test_a_signature_stays_and_its_docstring(family: Path) -> None:
    double = imported().double
    assert double.__doc__ == "Says who did it."
    assert list(inspect.signature(double).parameters) == ["n", "x", "by"]


def test_a_module_serves_its_device_and_the_operations_that_it_has(
    family: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (family / "native.py").write_text(DOUBLE)
    pretend(monkeypatch, cpu="native")
    ops, x = imported(), torch.zeros(1)
    assert ops.double(1, x) == "a_family.native 1 1"
    assert ops.halve(x) == "a_family.reference"
    assert ops.double(1, x.to("meta")) == "a_family.reference 1 1"


def test_a_triton_kernel_is_one_file(family: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of a device that every machine has; "cuda" is what it serves."""
    (family / "triton.py").write_text(DOUBLE)
    pretend(monkeypatch, meta="triton")
    ops = imported()
    assert ops.double(1, torch.empty(1, device="meta")) == "a_family.triton 1 1"
    assert ops.double(1, torch.zeros(1)) == "a_family.reference 1 1"
    with backends.using("reference"):
        assert ops.double(1, torch.empty(1, device="meta")) == "a_family.reference 1 1"
    assert ops.double(1, torch.empty(1, device="meta")) == "a_family.triton 1 1", "and back again"


def test_a_triton_kernel_joins_a_family_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is one file in its folder; here another stands in for it."""
    from grace.kernels import hash_coefficients, polynomial_hash

    name, file = "grace.kernels.count_sketches.triton", tmp_path / "triton.py"
    file.write_text("def polynomial_hash(a, keys): return 'fast' if len(a) > 1 else NotImplemented\n")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, name, module)
    dispatch._find.cache_clear()
    pretend(monkeypatch, meta="triton", cpu="native")
    keys = torch.empty(6, device="meta", dtype=torch.int64)
    coefficients = torch.empty(2, 3, device="meta", dtype=torch.int64)
    try:
        assert polynomial_hash(coefficients, keys) == "fast"  # type: ignore[comparison-overlap]
        assert polynomial_hash(coefficients[:1], keys).shape == (1, 6)
        assert hash_coefficients(torch.empty(6, device="meta", dtype=torch.int32), 2).shape == (2, 3)
    finally:
        dispatch._find.cache_clear()


def test_triton_serves_no_device_unless_it_is_asked_for() -> None:
    for choice in backends.available():
        with backends.using(choice):
            assert "triton" not in backends.backend().modules.values()


def test_without_the_triton_package_the_reference_runs(family: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (family / "triton.py").write_text("import triton.language\n" + DOUBLE)
    monkeypatch.setitem(sys.modules, "triton", None)
    pretend(monkeypatch, meta="triton")
    assert imported().double(1, torch.empty(1, device="meta")) == "a_family.reference 1 1"


def test_an_import_that_fails_otherwise_is_not_hidden(family: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (family / "native.py").write_text("import no_such_package\n" + DOUBLE)
    pretend(monkeypatch, cpu="native")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        imported().double(1, torch.zeros(1))


def test_not_implemented_leaves_the_call_to_the_reference(family: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (family / "native.py").write_text("def double(n, x, *, by=1): return NotImplemented if n > 8 else 'fast'\n")
    pretend(monkeypatch, cpu="native")
    ops = imported()
    assert [ops.double(n, torch.zeros(1)) for n in (8, 9)] == ["fast", "a_family.reference 9 1"]


def test_what_a_module_only_imports_is_not_its_own(family: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (family / "native.py").write_text("from a_family import halve\n" + DOUBLE)
    pretend(monkeypatch, cpu="native")
    assert imported().halve(torch.zeros(1)) == "a_family.reference"


def test_every_operation_has_a_reference_and_every_implementation_its_signature() -> None:
    count = 0
    for name in ("grace.random", *families()):
        family = importlib.import_module(name)
        own = [f for f in vars(family).values() if getattr(f, "__module__", None) == name]
        for signature in (f.__wrapped__ for f in own if hasattr(f, "__wrapped__") and not hasattr(f, "cache_info")):
            assert signature.__doc__
            assert dispatch._find(signature, "reference") is not None, signature
            for module in ("reference", "native", "triton"):
                implementation = dispatch._find(signature, module)
                if implementation is not None:
                    assert parameters(implementation) == parameters(signature), (signature, module)
                    count += 1
    assert count > 0


def families() -> list[str]:
    packages = pkgutil.walk_packages(grace.kernels.__path__, "grace.kernels.")
    return [package.name for package in packages if package.ispkg and "triton" not in package.name.split(".")]


def test_families_within_families_are_found() -> None:
    assert {"grace.kernels.index_codes.variable", "grace.kernels.low_rank.grouped"} < set(families())


def test_no_operation_hides_a_family_of_its_name() -> None:
    """A package whose attribute is a function cannot be reached by its path from there: a patch of it fails."""
    for name in families():
        package, _, own = name.rpartition(".")
        assert getattr(sys.modules[package], own) is importlib.import_module(name), name


def parameters(function: object) -> list[tuple[str, object, object]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]  # type: ignore
