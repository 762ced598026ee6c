"""`make quick` leaves out nothing that rests on a file that differs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import grace
from tests import quick
from tests.quick import ROOT, Changes, Imports

pytest.importorskip("grimp", reason="comes with import-linter")
UNIT = ROOT / "tests/unit"
IMPORTS = Imports()


def changes(*files: str, imports: Imports = IMPORTS) -> Changes:
    made = Changes(files)
    made.imports = imports
    return made


def item(name: str, *marks: Any, **params: Any) -> Any:
    """A test, as far as changes look at it."""
    return SimpleNamespace(
        path=ROOT / name, callspec=SimpleNamespace(params=params),
        get_closest_marker={mark.name: mark for mark in marks}.get,
    )  # fmt: skip


def files_of(test: Path) -> list[Path]:
    """The file or folder that a test mirrors, if there is one."""
    folder = test.relative_to(UNIT).parent
    place = ROOT / ("src" if folder.parts[0] == "grace_bench" else "src/grace") / folder
    place /= test.stem.removeprefix("test_").removeprefix("triton_")
    return [place.with_suffix(".py")] if place.with_suffix(".py").exists() else sorted(place.glob("*.py"))


def find_lost(imports: Imports, folder: str = "tests/unit/kernels") -> list[str]:
    """Files that could differ and no test of this folder would run, or not the one that mirrors them."""
    tests = {test: imports.below(test) for test in sorted((ROOT / folder).rglob("test_*.py"))}
    rooms = ("src/grace/kernels/",) if folder == "tests/unit/kernels" else quick.FOLDERS[folder]
    names = {file.relative_to(ROOT).as_posix() for room in rooms for file in (ROOT / room).rglob("*.py")}
    names |= {file.relative_to(ROOT).as_posix() for file in (ROOT / folder).rglob("*.py") if file.stem != "__init__"}
    names -= quick.STANDS_FOR.keys()
    lost = [f"{name}: no test" for name in sorted(names.difference(*tests.values()))]
    mirrored = ((test, file.relative_to(ROOT).as_posix()) for test in tests for file in files_of(test))
    return lost + [f"{name}: not {test.name}" for test, name in mirrored if name not in tests[test]]


@pytest.mark.parametrize("folder", quick.FOLDERS)
def test_whatever_differs_is_tested(folder: str) -> None:
    assert find_lost(IMPORTS, folder) == []
    assert all((ROOT / room).exists() for room in quick.FOLDERS[folder])


def test_whatever_kernels_rest_on_counts_for_their_tests() -> None:
    below = IMPORTS.below_modules(IMPORTS.graph.find_descendants("grace.kernels")) - {"src/grace/__init__.py"}
    assert [file for file in sorted(below) if not file.startswith(quick.FOLDERS["tests/unit/kernels"])] == []


def test_what_stands_for_something_is_there() -> None:
    assert all((ROOT / place).exists() for pair in quick.STANDS_FOR.items() for place in pair)
    assert all((ROOT / place).exists() for place in quick.COMMON)
    assert {package.partition(".")[0] for package in (quick.STOREHOUSE, *quick.COLLECTIONS)} <= set(quick.PACKAGES)


class WithoutFamilies(Imports):
    families = frozenset[str]()  # type: ignore[assignment]


class WithoutHelpers(Imports):
    def helpers(self, names: Iterable[str]) -> set[Path]:
        return set()


class OwnImportsOnly(Imports):
    def below_modules(self, names: Iterable[str]) -> set[str]:
        return {quick._file_of(name) for name in names}


@pytest.mark.parametrize(
    ("mutant", "lost"),
    [
        (WithoutFamilies, "src/grace/kernels/signs/native.py: not test_signs.py"),
        (WithoutHelpers, "tests/unit/kernels/native_checks.py: no test"),
        (OwnImportsOnly, "src/grace/kernels/blocks.py: no test"),
    ],
)
def test_a_rule_that_overlooks_something_is_caught(mutant: type[Imports], lost: str) -> None:
    imports = mutant()
    imports.graph = IMPORTS.graph
    assert lost in find_lost(imports)


# ---- which tests run ------------------------------------------------------------------------------------------------
def run(changed: Changes, folder: str = "tests/unit") -> set[str]:
    return {test.name for test in (ROOT / folder).rglob("test_*.py") if not changed.leaves_out(test)}


def test_where_nothing_differs_dear_folders_and_laws_are_left_out() -> None:
    nothing = changes()
    assert (
        run(nothing, "tests/laws")
        == run(nothing, "tests/unit/kernels")
        == run(nothing, "tests/unit/grace_bench")
        == set()
    )
    assert {"test_topk.py", "test_wire.py", "test_session.py", "test_docstrings.py"} <= run(nothing)


@pytest.mark.parametrize(
    ("file", "runs", "not_"),
    [
        (
            "src/grace/kernels/levels/triton.py",
            {"test_levels.py", "test_fixed.py", "test_definitions.py"},
            {"test_sums.py"},
        ),
        ("src/grace/compute/dispatch.py", {"test_levels.py", "test_sums.py", "test_triton_lists.py"}, {"test_arm.py"}),
        ("native/src/topk.cc", {"test_selection.py", "test_sums.py"}, {"test_arm.py"}),
        ("src/grace/methods/topk.py", set(), {"test_noting.py", "test_selection.py", "test_triton.py"}),
        ("tests/unit/kernels/native_checks.py", {"test_sums.py", "test_triton_pairs.py"}, {"test_signs.py"}),
        ("tests/unit/kernels/test_arm.py", {"test_arm.py"}, {"test_levels.py"}),
        ("README.md", set(), {"test_levels.py", "test_definitions.py"}),
    ],
)
def test_kernels_are_tested_where_their_files_differ(file: str, runs: set[str], not_: set[str]) -> None:
    found = run(changes(file), "tests/unit/kernels")
    assert runs <= found
    assert found.isdisjoint(not_)


def test_what_all_tests_rest_on_runs_all() -> None:
    assert run(changes("pyproject.toml"), "tests") == run(changes("tests/conftest.py"), "tests")
    assert len(run(changes("pyproject.toml"), "tests/unit/kernels")) > 20


def test_laws_of_methods_that_differ() -> None:
    def git(words: list[str]) -> str:
        return "src/grace/methods/topk.py\nREADME.md\n" if words[0] == "diff" else "src/grace/methods/qsgd.py\n"

    changed = Changes.since("HEAD", git)
    assert {"topk", "qsgd"} <= set(changed.methods) < set(grace.methods())
    law = "tests/laws/test_laws.py"
    kept = [item(law, spec="topk:ratio=0.2"), item("tests/unit/test_wire.py", spec="none")]
    assert changed.keep([*kept, item(law, spec="none")]) == kept
    assert changes("README.md").keep([item(law, spec="topk")]) == []
    assert len(changes(law).keep([item(law, spec="topk"), item(law)])) == 2, "the law itself differs"


def test_marked_tests_run_where_a_module_differs_that_they_rest_on() -> None:
    marked = item("tests/unit/run/test_log.py", pytest.mark.on_change("grace.run.log").mark)
    for file in ("src/grace/run/log.py", "src/grace/errors.py", "tests/unit/run/test_log.py", "constraints.txt"):
        assert changes(file).keep([marked]) == [marked], file
    for files in ((), ("README.md",), ("src/grace/methods/topk.py",)):
        assert changes(*files).keep([marked]) == [], files


@pytest.mark.parametrize("names", [(), ("grace.run.log", "grace.run.gone")])
def test_a_mark_names_modules(names: tuple[str, ...]) -> None:
    marked = SimpleNamespace(nodeid="a", iter_markers=lambda kind: [pytest.mark.on_change(*names).mark])
    with pytest.raises(pytest.UsageError, match="give modules of src"):
        quick.check_marks([marked])  # type: ignore[list-item]
