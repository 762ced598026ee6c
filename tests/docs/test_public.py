"""The page of what is public, and the names that Grace has."""

from __future__ import annotations

import re

import grace
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "concepts" / "public-api.md"


def named(text: str) -> list[str]:
    _, _, rest = text.partition("<!-- names -->")
    return re.findall(r"`(\w+)`", rest.partition("<!-- end of names -->")[0])


def missing(text: str) -> tuple[set[str], set[str]]:
    """(names that the page lacks, names that only the page has)."""
    names = named(text)
    assert len(names) == len(set(names))
    classes = {name for name in grace.__all__ if getattr(grace, name).__module__.startswith("grace.methods.")}
    return set(grace.__all__) - classes - set(names), set(names) - set(grace.__all__)


def test_the_page_names_what_grace_offers() -> None:
    assert missing(PAGE.read_text(encoding="utf-8")) == (set(), set())


def test_a_page_that_differs_is_noticed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert missing(text.replace("`attach`, ", "")) == ({"attach"}, set())
    assert missing(text.replace("`attach`, ", "`attach`, `attached`, ")) == (set(), {"attached"})


def test_its_modules_can_be_found() -> None:
    text = PAGE.read_text(encoding="utf-8")
    modules = set(re.findall(r"`(grace(?:_dl)?(?:\.\w+)+|grace_dl)`", text))
    assert len(modules) >= 15
    for module in modules:
        parts = ROOT / "src" / module.replace(".", "/")
        assert parts.is_dir() or parts.with_suffix(".py").is_file(), module
