"""The code in the pages runs, and their links lead somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, name, script, torchrun

CONCEPTS = [page for page in PAGES if page.parent.name == "concepts"]
WORKERS = [ROOT / "docs/concepts" / page for page in ("ddp.md", "local-steps.md")]  # run by torchrun


@pytest.mark.parametrize("page", [p for p in CONCEPTS if blocks(p, "python") and p not in WORKERS], ids=name)
def test_python_blocks_run(page: Path) -> None:
    exec(compile(script(page), str(page), "exec"), {"__name__": f"page_{page.stem.replace('-', '_')}"})


@pytest.mark.parametrize("page", WORKERS, ids=name)
def test_pages_for_several_workers_run_on_two(page: Path, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(script(page))
    torchrun(tmp_path / "page.py")


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "pycon")], ids=name)
def test_examples_with_prompts(page: Path) -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    for line, text in blocks(page, "pycon"):
        runner.run(parser.get_doctest(text, {}, name(page), str(page), line), out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_fence_names_its_language(page: Path) -> None:
    fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(fences[::2]) <= {"python", "pycon", "console", "text", "bibtex"}
    assert set(fences[1::2]) <= {""}


def test_every_concept_is_in_the_index() -> None:
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert [page.name for page in CONCEPTS if f"concepts/{page.name}" not in text] == []


def test_the_tree_of_errors_is_the_one_in_the_code() -> None:
    import grace.errors

    tree = (grace.errors.__doc__ or "").partition("::")[2]
    (_, shown), *_ = blocks(ROOT / "docs/concepts/errors.md", "text")
    assert [line.strip() for line in tree.strip().splitlines()] == [line.strip() for line in shown.strip().splitlines()]
