"""A class's name says which one it is: none of the core's has the name of another."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src/grace"


def find_homonyms(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that more than one module gives to a class, and those modules."""
    places = defaultdict(list)
    for place, text in sources.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_class_of_the_core_has_the_name_of_another() -> None:
    sources = {str(path.relative_to(SOURCES)): path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")}
    assert len(sources) > 200
    assert find_homonyms(sources) == {}


def test_a_homonym_is_found() -> None:
    assert find_homonyms({"a.py": "class Plan: ...", "b.py": "class Plan(A): ...", "c.py": "Plan = 1"}) == {
        "Plan": ["a.py", "b.py"]
    }
