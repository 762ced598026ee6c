"""Rules for docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import grace

SOURCES = Path(grace.__file__).parent
ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "docs")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def test_what_is_written_to_is_not_the_subject():
    """A function that writes to ``out`` says "Sets" or "Adds to", and then ``out``; no variable is written with a capital."""
    wrong = [
        f"{file.relative_to(SOURCES)}:{node.lineno} {node.name}"
        for file in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and (first := re.match(r"(Out|[B-HJ-Z]) ", ast.get_docstring(node) or ""))
        if first[1] == "Out" or first[1].lower() in {argument.arg for argument in node.args.args}
    ]
    assert wrong == []


# A clause is no name of a thing, nor of an action.
CLAUSE = re.compile(r"(What|Whether|Of|Those|How|One|Where|Which|Why|When|Who|Whose|That)\b")


def find_clauses(text: str) -> list[str]:
    """First lines of the docstrings of a module, of its classes and of its functions that begin with a clause."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
    texts = [doc for node in nodes if (doc := ast.get_docstring(node)) and CLAUSE.match(doc)]
    return [doc.splitlines()[0] for doc in texts]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 1000
    clauses = {
        file.relative_to(ROOT).as_posix(): lines
        for file in files
        if (lines := find_clauses(file.read_text(encoding="utf-8")))
    }
    assert clauses == {}, "say what it is or does: 'The payload of one worker.', 'True if x is finite.'"


def test_a_clause_is_found() -> None:
    text = '''"""What a module is."""
class A:
    """Those of a class."""
    async def f(self):
        """Whether it waits.

        What follows may begin as it likes.
        """
def g():
    """Offers: what begins with Of is another word."""
def h():
    """Of each row."""
def i():
    """Onefold."""
    def j():
        """How many rows there are."""
'''
    assert find_clauses(text) == [
        "What a module is.",
        "Those of a class.",
        "Of each row.",
        "Whether it waits.",
        "How many rows there are.",
    ]


# A shape, or whose it is, or where it is said.
SHAPE = re.compile(
    r"``[^`]*\[[^`]*``|\bshapes?\b|\blike\b|\b[01]-d\b|\bscalar\b|\bmatri|\brows\b|:(func|meth|class|mod):`|^See ",
    re.DOTALL,
)


def list_public() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every public function and method of the core that has a docstring, and its name."""

    def visit(body: Sequence[ast.stmt], place: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                if isinstance(node, ast.ClassDef):
                    yield from visit(node.body, f"{place}{node.name}.")
                elif ast.get_docstring(node):
                    yield f"{place}{node.name}", node

    for file in sorted(SOURCES.rglob("*.py")):
        yield from visit(ast.parse(file.read_text(encoding="utf-8")).body, f"{file.relative_to(SOURCES).as_posix()} ")


def takes_tensors(function: ast.FunctionDef) -> bool:
    annotations = [
        argument.annotation for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    ]
    texts = [ast.unparse(annotation) for annotation in annotations if annotation is not None]
    return any(re.search(r"\bTensor\b", text) and "Callable" not in text for text in texts)


def list_raised(function: ast.FunctionDef) -> set[str]:
    """The errors that a function raises itself, by the names of their classes."""
    raised, rest = set(), list[ast.AST](function.body)
    while rest:
        node = rest.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Raise) and node.exc is not None:
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            raised.add(getattr(made, "id", getattr(made, "attr", "")))
        rest += ast.iter_child_nodes(node)
    return {name for name in raised if name[:1].isupper()} - {"NotImplementedError", "AssertionError"}


def test_public_functions_say_the_shapes_of_tensors() -> None:
    """Laws (``verify``) take tensors of any shape."""
    silent = {
        name
        for name, node in list_public()
        if takes_tensors(node) and not name.startswith("verify/") and not SHAPE.search(ast.get_docstring(node) or "")
    }
    assert silent == set(), "say ``[b, n]``, or 'of any shape'"


def test_public_functions_say_what_they_raise() -> None:
    """Commands say it in their help, and by their exit status."""
    silent = [
        f"{name}: {', '.join(sorted(raised))}"
        for name, node in list_public()
        if not name.startswith("cli/")
        and (raised := list_raised(node))
        and not re.search(r"[Rr]aises|^See ", ast.get_docstring(node) or "")
    ]
    assert silent == []
