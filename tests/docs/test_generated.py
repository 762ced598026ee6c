"""Generated files are checked in as they are generated now; `make docs` writes it."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType

import pytest

import grace
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date(generate: ModuleType) -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generate.generate_all().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run `make docs`"


def test_no_page_is_left_over(generate: ModuleType) -> None:
    pages = {path for path in generate.generate_all() if path.suffix == ".md" and path.parent.name == "methods"}
    assert set((ROOT / "docs/methods").glob("*.md")) == pages


def test_every_method_has_a_page_and_a_row(generate: ModuleType) -> None:
    table = (ROOT / "docs/methods/index.md").read_text(encoding="utf-8")
    families = generate.readme_families()
    assert families in (ROOT / "README.md").read_text(encoding="utf-8")
    for name in generate.own_methods():
        assert name in grace.methods()
        assert f"]({name}.md)" in table
        assert len(re.findall(rf"[ ,]{name}(,|$)", families, flags=re.MULTILINE)) == 1


def test_every_knob_is_described(generate: ModuleType) -> None:
    for name in generate.own_methods():
        page = (ROOT / f"docs/methods/{name}.md").read_text(encoding="utf-8")
        assert "|  |" not in page, f"a knob of {name} has no description"
