"""Names of variables say what they hold: no variable is a pronoun; in the core, ``whole`` lives for a few lines only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "docs")
CORE = "src/grace/"
FORBIDDEN = {"one", "found", "mine", "said"}
PRONOUNS = FORBIDDEN | {"whole"}
LINES = 6  # how long another may live in the core
PUBLIC = {("checkpoint", "whole")}  # users write it: handle.checkpoint(whole=True)

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def spans_of(scope: ast.AST) -> Iterator[tuple[str, int, int]]:
    """The pronouns that a function or a comprehension binds: name, first line, last line."""
    lines: dict[str, list[int]] = {}
    for node, name in _uses(scope):
        lines.setdefault(name, []).append(node.lineno)
    for name, places in lines.items():
        yield name, min(places), max(places)


def _bound(scope: ast.AST) -> set[str]:
    if isinstance(scope, COMPREHENSIONS):
        targets = [node for part in scope.generators for node in ast.walk(part.target)]
        return {node.id for node in targets if isinstance(node, ast.Name)}
    return {node.arg if isinstance(node, ast.arg) else node.id for node in _own(scope) if _binds(node)}


def _binds(node: ast.AST) -> bool:
    return isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function itself, without those of functions and comprehensions in it."""
    rest = list(ast.iter_child_nodes(scope))
    while rest:
        node = rest.pop()
        yield node
        if not isinstance(node, (*COMPREHENSIONS, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            rest += ast.iter_child_nodes(node)


def _uses(scope: ast.AST) -> Iterator[tuple[ast.expr | ast.arg, str]]:
    """Places where the pronouns that a scope binds are written, in the scopes within it, too."""
    bound = PRONOUNS & _bound(scope)
    rest = [(node, bound) for node in ast.iter_child_nodes(scope)]
    while rest:
        node, names = rest.pop()
        if isinstance(node, ast.Name) and node.id in names:
            yield node, node.id
        elif isinstance(node, ast.arg) and node.arg in names:
            yield node, node.arg
        if isinstance(node, (*COMPREHENSIONS, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            names = names - _bound(node)
        rest += [(child, names) for child in ast.iter_child_nodes(node)]


def find_pronouns(sources: Mapping[str, str]) -> list[str]:
    """Variables that are forbidden, and those that live too long."""
    wrong = []
    for place, text in sources.items():
        for scope in ast.walk(ast.parse(text)):
            if isinstance(scope, (*COMPREHENSIONS, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                called = getattr(scope, "name", "")
                wrong += [
                    f"{place}:{first} {name}, {last - first + 1} lines"
                    for name, first, last in spans_of(scope)
                    if name in FORBIDDEN
                    or (place.startswith(CORE) and last - first >= LINES and (called, name) not in PUBLIC)
                ]
    return wrong


def test_no_variable_is_a_pronoun() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    assert {"grace", "grace_bench", "grace_command", "grace_dl", "unit", "laws"} <= {p.split("/")[1] for p in sources}
    assert len(sources) > 1200
    assert find_pronouns(sources) == []


def test_a_pronoun_is_found() -> None:
    gap = "\n" * LINES
    sources = {
        "a.py": "def f():\n    one = 1\n    return one",
        "b.py": "def f(found):\n    return 2",
        "c.py": "x = [one for one in y]",
        "d.py": "def f():\n    return lambda mine: mine",
        "e.py": "async def f():\n    if (said := g()):\n        return said",
        "src/grace/f.py": f"def f(whole):\n{gap}    return whole",
        "src/grace/g.py": "def f(whole):\n    return whole",
        "src/grace/h.py": f"def checkpoint(whole):\n{gap}    return whole",
        "i.py": "def f():\n    return g(one=1).found",
        "benchmarks/j.py": f"def f(whole):\n{gap}    return whole",
    }
    assert [line.split(":", 1)[0] for line in find_pronouns(sources)] == [
        "a.py",
        "b.py",
        "c.py",
        "d.py",
        "e.py",
        "src/grace/f.py",
    ]
