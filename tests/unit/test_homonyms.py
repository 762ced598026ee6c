"""A class's name says which one it is: none of Grace's has the name of another. A word of the contract means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
# The rest is what a memory keeps of a tensor when some of it has been sent; only rooms that make or keep one say so.
REST = (
    "grace/contract/", "grace/kernels/", "grace/methods/", "grace/memories/", "grace/communicators/", "grace/verify/",
    "grace/run/captures.py", "grace/jax/xla/", "grace_bench/codecs/",
)  # fmt: skip


def read_sources() -> dict[str, str]:
    paths = (path for package in ("grace", "grace_bench") for path in (SOURCES / package).rglob("*.py"))
    return {path.relative_to(SOURCES).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def find_homonyms(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that more than one module gives to a class, and those modules."""
    places = defaultdict(list)
    for place, text in sources.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def find_names(sources: Mapping[str, str], name: str) -> list[str]:
    """The modules that call a variable, an argument, an attribute or a function so."""
    return [
        place
        for place, text in sources.items()
        if any(
            name in (getattr(node, key, None) for key in ("id", "arg", "attr", "name"))
            for node in ast.walk(ast.parse(text))
        )
    ]


def test_no_class_has_the_name_of_another() -> None:
    sources = read_sources()
    assert len(sources) > 400
    assert find_homonyms(sources) == {}


def test_rest_has_one_meaning() -> None:
    sources = {place: text for place, text in read_sources().items() if re.search(r"\brest\b", text)}
    assert [place for place in find_names(sources, "rest") if not place.startswith(REST)] == []


def test_another_meaning_is_found() -> None:
    sources = {
        "a.py": "name, rest = text.split()",
        "b.py": "pace.rest()",
        "c.py": "def rest(): ...",
        "d.py": "restore()",
    }
    assert find_names(sources, "rest") == ["a.py", "b.py", "c.py"]


def test_a_homonym_is_found() -> None:
    assert find_homonyms({"a.py": "class Plan: ...", "b.py": "class Plan(A): ...", "c.py": "Plan = 1"}) == {
        "Plan": ["a.py", "b.py"]
    }
