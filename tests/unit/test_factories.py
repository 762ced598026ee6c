"""A tensor that is made says its dtype and its device: torch's defaults are the user's, who may set others."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
ROOMS = ("grace", "grace_dl")  # what runs in the user's process
FACTORIES = {
    "arange", "as_tensor", "asarray", "empty", "empty_permuted", "empty_strided", "eye", "full", "linspace", "logspace",
    "normal", "ones", "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "sparse_coo_tensor", "tensor",
    "zeros",
}  # fmt: skip
ALIASES = {"BoolTensor", "FloatTensor", "IntTensor", "LongTensor", "Tensor"}  # constructors that take neither


def find_implicit(sources: Mapping[str, str]) -> Iterator[str]:
    """Finds calls of torch's factories without ``dtype=`` and ``device=``; with ``out=`` both are known. Says where."""
    for place, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == "torch":
                yield from (f"{place}:{node.lineno} import {a.name}" for a in node.names if a.name in FACTORIES)
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if not isinstance(node.func.value, ast.Name) or node.func.value.id != "torch":
                continue
            name, given = node.func.attr, {keyword.arg for keyword in node.keywords}
            if name in ALIASES or (name in FACTORIES and "out" not in given and not {"dtype", "device"} <= given):
                yield f"{place}:{node.lineno} torch.{name}"


def test_every_factory_says_dtype_and_device() -> None:
    files = [path for room in ROOMS for path in (SOURCES / room).rglob("*.py")]
    sources = {str(path.relative_to(SOURCES)): path.read_text(encoding="utf-8") for path in files}
    assert len(sources) > 200
    assert list(find_implicit(sources)) == []


@pytest.mark.parametrize(
    "text",
    [
        "torch.empty(3)", "torch.empty(3, dtype=torch.float32)", 'torch.full((), 1.0, device="cpu")', "torch.tensor(1.0)",
        "torch.as_tensor(x)", "torch.Tensor(3)", "from torch import zeros",
    ],
)  # fmt: skip
def test_an_implicit_factory_is_caught(text: str) -> None:
    assert len(list(find_implicit({"mutant.py": text}))) == 1


@pytest.mark.parametrize(
    "text",
    [
        'torch.empty(3, dtype=torch.float32, device="cpu")', "torch.zeros_like(x)", "x.new_empty(3)", "torch.from_numpy(a)",
        "torch.arange(3, out=x)", "from torch import Tensor",
    ],
)  # fmt: skip
def test_what_follows_from_another_tensor_is_allowed(text: str) -> None:
    assert list(find_implicit({"mutant.py": text})) == []
