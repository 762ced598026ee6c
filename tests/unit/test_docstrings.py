"""What docstrings of the core have in common."""

from __future__ import annotations

import ast
from pathlib import Path

import grace

SOURCES = Path(grace.__file__).parent


def test_what_is_written_to_is_not_the_subject():
    """A function that writes to ``out`` says "Sets" or "Adds to", and then ``out``."""
    found = [
        f"{file.relative_to(SOURCES)}:{node.lineno} {node.name}"
        for file in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and (ast.get_docstring(node) or "").startswith("Out ")
    ]
    assert found == []
