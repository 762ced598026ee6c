"""What `make quick` leaves out, because nothing that it rests on differs from a commit. `make test` runs it always.

- A law's case runs if its method's file differs, or its own.
- A file of a folder in :data:`FOLDERS` runs if a file differs that it imports, itself or through others.
- A test that is marked ``on_change(module, ...)`` runs if its file differs, or one of these modules, or one that they import.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import grimp

ROOT = Path(__file__).parents[1]
LAWS = "tests/laws/"
# Folders of dear tests, and the sources that count for them; what else their files import has units of its own.
FOLDERS = {
    "tests/unit/kernels": (
        "src/grace/kernels/", "src/grace/compute/", "src/grace/flags/", "src/grace/random/", "src/grace/collectives.py",
        "src/grace/errors.py", "src/grace/wire.py",
    ),
    "tests/unit/grace_bench": ("src/grace_bench/",),
    "tests/unit/cli": ("src/grace/cli/",),
}  # fmt: skip
# What no import shows: where something in this folder differs, or this file, that file counts as different, too.
STANDS_FOR = {
    "native/": "src/grace/compute/native.py",
    "tests/golden/": "tests/golden/golden.py",
    "tests/unit/kernels/compiled_triton.py": "tests/unit/kernels/test_triton.py",
    "tests/unit/kernels/compiled_ways.py": "tests/unit/kernels/test_triton.py",
    "src/grace/cli/__main__.py": "src/grace/cli/app.py",
    "src/grace_bench/network/socket_load.py": "src/grace_bench/network/throughput.py",
}
# All tests rest on these.
COMMON = {"conftest.py", "constraints.txt", "pyproject.toml", "tests/conftest.py", "tests/quick.py"}
STOREHOUSE = "grace.kernels"  # it passes on what its families have
# Packages that import whatever is in them.
COLLECTIONS = {"grace.methods", "grace.memories", "grace.communicators", "grace_bench.tasks", "grace_bench.toolkits"}
PACKAGES = ("grace", "grace_bench", "grace_command")


class Changes:
    """Files that differ, and what rests on them.

    Args:
        files: relative to the repository.
    """

    def __init__(self, files: Iterable[str]):
        files = set(files)
        self.files = files | {file for folder, file in STANDS_FOR.items() if any(f.startswith(folder) for f in files)}

    @classmethod
    def since(cls, commit: str, git: Callable[[list[str]], str] | None = None) -> Changes:
        """What differs from a commit in the working tree, new and removed files included."""
        ask = git or _ask_git
        differ = ask(["diff", "--name-only", "--no-renames", commit])
        return cls((differ + ask(["ls-files", "--others", "--exclude-standard"])).splitlines())

    @cached_property
    def methods(self) -> list[str]:
        """The methods whose files differ."""
        import grace
        from grace.contract.wrapping import layers

        modules = {_module_of(file) for file in self.files if file.startswith("src/grace/methods/")}
        if not modules:
            return []
        return [name for name in grace.methods() if type(layers(grace.method(name))[-1]).__module__ in modules]

    def leaves_out(self, path: Path) -> bool:
        """Whether no test of this file has to run, so that it need not be read."""
        name = path.relative_to(ROOT).as_posix()
        if path.suffix != ".py" or path.stem == "__init__" or name in self.files or self.files & COMMON:
            return False
        if name.startswith(LAWS):
            return not self.methods
        counts = next((counts for folder, counts in FOLDERS.items() if name.startswith(folder + "/")), None)
        if counts is None:
            return False
        differ = {file for file in self.files if file.startswith(("tests/", *counts))}
        return not differ or differ.isdisjoint(self.imports.below(path))

    def keep(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """The tests that run."""
        return [item for item in items if self._keeps(item)]

    def _keeps(self, item: pytest.Item) -> bool:
        file = item.path.relative_to(ROOT).as_posix()
        if file in self.files:
            return True
        if file.startswith(LAWS):
            return _method_of(item) in self.methods
        mark = item.get_closest_marker("on_change")
        if mark is None or self.files & COMMON:
            return True
        return bool(self.files) and not self.files.isdisjoint(self.imports.below_modules(mark.args))

    @cached_property
    def imports(self) -> Imports:
        return Imports()


class Imports:
    """What a file imports, itself or through others."""

    @cached_property
    def graph(self) -> grimp.ImportGraph:
        import grimp  # it comes with import-linter

        graph = grimp.build_graph(*PACKAGES, cache_dir=None)
        for importer in graph.find_modules_that_directly_import(STOREHOUSE):
            names = _imported(ROOT / _file_of(importer)) & graph.modules
            if STOREHOUSE not in names:
                graph.remove_import(importer=importer, imported=STOREHOUSE)
            for name in names - {importer}:
                graph.add_import(importer=importer, imported=name)
        return graph

    def below(self, path: Path) -> set[str]:
        """The file, and the files that it rests on, relative to the repository."""
        fixtures = (folder / "conftest.py" for folder in path.parents if folder.is_relative_to(ROOT / "tests/unit"))
        tests = {path, *(file for file in fixtures if file.exists())}
        modules, rest = set[str](), list(tests)
        while rest:
            names = _imported(rest.pop())
            modules |= names & self.graph.modules
            helpers = self.helpers(names) - tests
            tests |= helpers
            rest += helpers
        return {test.relative_to(ROOT).as_posix() for test in tests} | self.below_modules(modules)

    def helpers(self, names: Iterable[str]) -> set[Path]:
        """The files of these modules that are in tests."""
        files = (ROOT / f"{name.replace('.', '/')}.py" for name in names if name.startswith("tests."))
        return {file for file in files if file.exists()}

    def below_modules(self, names: Iterable[str]) -> set[str]:
        """The files of these modules, those that they rest on, and those of the packages that they are in.

        An operation finds its implementations by their names: who needs one of a family rests on all its files.
        """
        modules, rest = set[str](), set(names)
        while rest:
            reached = rest.union(*(self.graph.find_upstream_modules(name) for name in rest))
            families = {family for name in reached for family in self.families if f"{name}.".startswith(f"{family}.")}
            packages = families | (reached & COLLECTIONS)
            reached = reached.union(*(self.graph.find_descendants(package) for package in packages))
            modules |= rest
            rest = reached - modules
        around = {name.rsplit(".", depth)[0] for name in modules for depth in range(name.count(".") + 1)}
        return {_file_of(name) for name in modules | around}

    @cached_property
    def families(self) -> set[str]:
        return {name.removesuffix(".reference") for name in self.graph.modules if name.endswith(".reference")}


def check_marks(items: Iterable[pytest.Item]) -> None:
    """What a mark names is there.

    Raises:
        UsageError: a mark without a module, or with one that does not exist.
    """
    for item in items:
        for mark in item.iter_markers("on_change"):
            if not mark.args or not all(map(_exists, mark.args)):
                raise pytest.UsageError(f"{item.nodeid}: on_change names {list(mark.args)}: give modules of src")


@cache
def _imported(path: Path) -> frozenset[str]:
    """The names that may be modules: ``from a import b`` gives ``a.b``, or ``a`` where ``b`` is no module. Whatever comes from
    the storehouse is of the family that has it.
    """
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {_find_module(node.module, alias.name) for alias in node.names}
    return frozenset(names)


def _find_module(package: str, name: str) -> str:
    if _exists(f"{package}.{name}"):
        return f"{package}.{name}"
    if package != STOREHOUSE:
        return package
    return str(getattr(getattr(importlib.import_module(package), name), "__module__", package))


@cache
def _exists(module: str) -> bool:
    folders = (ROOT, ROOT / "src")
    place = module.replace(".", "/")
    return any((folder / f"{place}.py").exists() or (folder / place / "__init__.py").exists() for folder in folders)


def _file_of(module: str) -> str:
    place = "src/" + module.replace(".", "/")
    return f"{place}/__init__.py" if (ROOT / place).is_dir() else f"{place}.py"


def _module_of(file: str) -> str:
    return file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _method_of(item: pytest.Item) -> str:
    """The method whose law a test is; empty if it is of none."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return str(params.get("spec", params.get("name", ""))).partition(":")[0]


def _ask_git(words: list[str]) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
