"""A public class's name says which one it is: no other class of Grace has it. A word of the contract means one thing.

Names are public that an ``__all__`` lists: see docs/concepts/public-api.md. Two classes that no user meets may share a name.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import grace

SOURCES = Path(__file__).parents[2] / "src"
# The rest is what a memory keeps of a tensor when some of it has been sent; only rooms that make or keep one say so.
REST = (
    "grace/contract/", "grace/kernels/", "grace/methods/", "grace/memories/", "grace/communicators/", "grace/verify/",
    "grace/optim/tiles.py", "grace/run/captures.py", "grace/jax/xla/", "grace_bench/codecs/",
)  # fmt: skip


def read_sources() -> dict[str, str]:
    """The text of each module and of each stub: packages that find their own modules list their names there."""
    paths = (path for package in ("grace", "grace_bench") for path in (SOURCES / package).rglob("*.py*"))
    return {
        path.relative_to(SOURCES).as_posix(): path.read_text(encoding="utf-8")
        for path in paths
        if path.suffix in (".py", ".pyi")
    }


def list_public(sources: Mapping[str, str]) -> set[str]:
    """Names in an ``__all__``."""
    names = set()
    for text in sources.values():
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if "__all__" in map(ast.unparse, targets):
                    names |= {part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
    return names


def find_homonyms(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Public names that more than one module gives to a class, and those modules."""
    public, places = list_public(sources), defaultdict(list)
    for place, text in sources.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and node.name in public:
                places[node.name].append(place)
    return {name: modules for name, modules in places.items() if len(modules) > 1}


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


def test_no_class_has_the_name_of_a_public_one() -> None:
    sources = read_sources()
    assert len(sources) > 400
    assert list_public(sources) >= {name for name in grace.__all__ if isinstance(getattr(grace, name), type)}
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


def test_a_homonym_of_a_public_class_is_found() -> None:
    sources = {"a.py": "class Plan: ...", "b.py": "class Plan(A): ...", "c.py": "Plan = 1", "d.py": "Plans = ['Plan']"}
    assert find_homonyms(sources) == {}
    for listing in ("__all__ = ['Plan']", "__all__: Final = ['Plan']", "__all__ += ['Plan']"):
        assert find_homonyms({**sources, "e.pyi": listing}) == {"Plan": ["a.py", "b.py"]}
