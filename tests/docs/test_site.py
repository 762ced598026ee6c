"""The site is made of the repository's pages. `make site` builds it, and fails on a warning; here is what that cannot know."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

import grace.errors
import grace.methods as methods_package
from tests.docs.pages import ROOT

CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("pip install 'grace-dl[docs]'")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/site/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_has_its_place() -> None:
    placed = set(re.findall(r"(?:concepts|data)/[\w-]+\.md", CONFIG.partition("\nnav:")[2]))
    there = {
        f"{folder}/{page.name}" for folder in ("concepts", "data") for page in (ROOT / "docs" / folder).glob("*.md")
    }
    assert there - placed == set(), "name these pages in the nav of mkdocs.yml"
    assert placed - there == set()


def test_every_name_of_the_package_is_in_the_reference(hooks: ModuleType) -> None:
    pages = hooks.api_pages()
    text = "".join(page for _, page in pages.values())
    named = {line.rpartition(".")[2] for line in text.splitlines() if line.startswith("::: ")}
    methods = set(methods_package.__all__)  # they have pages of their own
    assert set(grace.__all__) - methods - named == set()
    assert "reference/api/else.md" not in pages, "say in docs/site/hooks.py under which heading this belongs"
    assert "::: grace.keras." in pages["reference/api/keras.md"][1]


def test_every_command_is_in_the_reference(hooks: ModuleType) -> None:
    text = hooks.commands()
    for command in ("list", "explain", "verify", "doctor", "compare", "bench train", "bench codecs"):
        assert f"`grace {command}`" in text


def test_links_of_the_repository_become_links_of_the_site(hooks: ModuleType) -> None:
    text = "[a](docs/concepts/ddp.md#counting) [b](https://x.y) [c](#here) [d](docs/index.md) [e](src/grace/wire.py)\n"
    fence = "```text\n[a](docs/concepts/ddp.md)\n```\n"
    there = hooks.translate(text + fence, ROOT / "README.md", "index.md")
    assert there == (
        "[a](concepts/ddp.md#counting) [b](https://x.y) [c](#here) [d](pages.md) [e](files/src/grace/wire.py.md)\n"
        + fence
    )
    page = hooks.translate(
        "[f](../../src/grace/wire.py) [g](../index.md)", ROOT / "docs/concepts/ddp.md", "concepts/ddp.md"
    )
    assert page == "[f](../files/src/grace/wire.py.md) [g](../pages.md)"


def test_what_errors_link_to_is_there(hooks: ModuleType) -> None:
    import markdown

    text = (ROOT / "docs/concepts/errors.md").read_text(encoding="utf-8")
    anchors = re.findall(r'<h3 id="([^"]+)"', markdown.markdown(text, extensions=["fenced_code", "toc"]))
    classes = {
        name
        for name, value in vars(grace.errors).items()
        if isinstance(value, type) and value.__module__ == "grace.errors"
    }
    assert {name.lower() for name in classes} <= set(anchors)
    assert "use_directory_urls: false" in CONFIG, "the links say concepts/errors.html"


def test_nothing_is_fetched() -> None:
    assert "font: false" in CONFIG
    assert "polyfills: [site/iframe-worker.js]" in CONFIG
    for file in (ROOT / "docs/site").glob("*.[cj]s*"):
        assert "http" not in file.read_text(encoding="utf-8")
