"""Every class of errors and warnings has its section in the page, and what is raised says where it is."""

from __future__ import annotations

import importlib
import importlib.metadata
import pickle
import re
import sys
import traceback
import warnings
from pathlib import Path

import pytest

import grace
from grace import errors
from grace.errors import AbsentError, ConfigurationError, GraceError, GraceWarning, NonFiniteError, UncompressedWarning
from grace_command import catalog

PAGE = Path(__file__).resolve().parents[2] / "docs/concepts/errors.md"
for _module in ("network.namespaces", "runs.results", "workers.sweep", "extras"):
    importlib.import_module(f"grace_bench.{_module}")


def kinds(root: type[BaseException]) -> set[type[BaseException]]:
    """All classes of Grace's own below this one, and it."""
    below = {kind for child in root.__subclasses__() for kind in kinds(child)}
    return {kind for kind in {root, *below} if kind.__module__.partition(".")[0] in ("grace", "grace_bench")}


ALL = sorted(kinds(GraceError) | kinds(GraceWarning), key=lambda kind: kind.__name__)


def raised(kind: type[BaseException]) -> BaseException:
    return kind([1], "text") if issubclass(kind, AbsentError) else kind("text")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_class_has_its_section_and_says_so(kind: type[BaseException]) -> None:
    headings = re.findall(r"^### (\w+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings.count(kind.__name__) == 1, f"say in {PAGE.name} what to do about it"
    error = raised(kind)
    where = errors._section(kind)
    assert where == f"grace explain {kind.__name__}"
    section = catalog.find_error(kind.__name__)
    assert section is not None, "make docs"
    assert section["error"] == kind.__name__
    assert len(section["about"]) > 20
    if isinstance(error, GraceWarning):
        assert str(error) == f"text. Read on: {where}"
        return
    assert isinstance(error, GraceError)
    assert (str(error), error.see) == ("text", where)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__notes__) == (kind, "text", [f"Read on: {where}"])


def test_the_page_has_no_other() -> None:
    headings = re.findall(r"^### (\w+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(headings) == {kind.__name__ for kind in ALL}


def test_a_traceback_says_it_on_a_line_of_its_own() -> None:
    with pytest.raises(ConfigurationError) as caught:
        grace.method("topk:ratio=2")
    *_, text, note = "".join(traceback.format_exception(caught.value)).splitlines()
    if sys.version_info >= (3, 11):
        assert text.endswith("0 < ratio <= 1")
        assert note == f"Read on: {caught.value.see}"


def test_a_class_of_ones_own_is_told_as_what_it_extends() -> None:
    class Mine(NonFiniteError):
        pass

    assert Mine("x").see == NonFiniteError("x").see


def test_with_a_site_it_is_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = importlib.metadata.metadata("grace-dl")
    fields["Project-URL"] = "Documentation, https://docs.example/grace/"
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: fields)
    errors._page.cache_clear()
    try:
        assert GraceError("x").see == "https://docs.example/grace/concepts/errors.html#graceerror"
        with pytest.warns(
            UncompressedWarning, match=r"x\. Read on: https://docs\.example/grace/concepts/errors\.html#un"
        ):
            warnings.warn("x", UncompressedWarning, stacklevel=1)
    finally:
        errors._page.cache_clear()


def test_without_an_installation_it_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", missing)
    errors._page.cache_clear()
    try:
        assert GraceError("x").see == "grace explain GraceError"
    finally:
        errors._page.cache_clear()
