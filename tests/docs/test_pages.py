"""The code in the pages runs, and their links lead somewhere."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

from tests.distributed.processes import run_script, run_under_mpi
from tests.docs.pages import PAGES, ROOT, blocks, name, run, run_blocks, write_script

CONCEPTS = [page for page in PAGES if page.parent.name == "concepts"]
_FOR_WORKERS = (
    "auto.md", "coming-from.md", "compressed-optimizers.md",
    "ddp.md", "gossip.md", "local-steps.md", "optimizer.md", "sharded.md",
)  # fmt: skip
WORKERS = [ROOT / "docs/concepts" / page for page in _FOR_WORKERS]  # run by two workers
# likewise; they start slowly, and of some one worker is enough in `make test`, which runs their doors in two elsewhere
TOOLKITS = [ROOT / "docs/concepts" / page for page in ("integrations.md", "keras.md", "tensorflow.md")]
_ALONE = ("keras", "tensorflow")
_NEEDS = {"integrations": "accelerate"}
# `auto` measures codecs and the link for seconds; here it measures no more than it has to.
_BEFORE = {"auto": "import grace.auto.calibrate as quick; quick.LINK_NS = quick.CODEC_NS = 0"}
MPI = ROOT / "docs/concepts/launching.md"  # run by mpiexec
DECOUPLED = ROOT / "docs/concepts/decoupled.md"  # run by a learner: tests/distributed/test_decoupled.py
ELSEWHERE = [*WORKERS, *TOOLKITS, MPI, DECOUPLED]
_SLOW = ("logging.md",)  # TensorBoard, and what it imports
doors = pytest.mark.tier("doors")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=doors if page.name in _SLOW else (), id=name(page))
        for page in CONCEPTS
        if blocks(page, "python") and page not in ELSEWHERE
    ],
)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    if page.name in _SLOW:  # as a reader runs it: in this process triton is there before TensorFlow
        run(str(write_script(page, tmp_path)), cwd=tmp_path)
    else:
        run_blocks(page)


def test_a_block_that_fails_is_named_by_page_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\n```\n\n```python\ny = 2\nassert x == y\n```\n")
    with pytest.raises(AssertionError) as failure:
        run_blocks(page)
    assert [(str(entry.path), entry.lineno + 1) for entry in failure.traceback][-1] == (str(page), 9)
    assert write_script(page, tmp_path).read_text().splitlines()[8] == "assert x == y"


@doors
@pytest.mark.parametrize("page", WORKERS, ids=name)
def test_pages_for_several_workers_run_on_two(page: Path, tmp_path: Path) -> None:
    run_script(write_script(page, tmp_path, _BEFORE.get(page.stem, "")), workers=2)


@doors
def test_the_page_about_mpi_runs_on_two(tmp_path: Path) -> None:
    done = run_under_mpi(write_script(MPI, tmp_path), workers=2)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("page", "workers"),
    [
        *(
            pytest.param(page, 1 if page.stem in _ALONE else 2, marks=() if page.stem in _ALONE else doors)
            for page in TOOLKITS
        ),
        *(pytest.param(p, 2, marks=pytest.mark.night("raw gradient")) for p in TOOLKITS if p.stem in _ALONE),
    ],
    ids=lambda value: name(value) if isinstance(value, Path) else value,
)
def test_pages_for_toolkits_run(page: Path, workers: int, tmp_path: Path) -> None:
    if importlib.util.find_spec(_NEEDS.get(page.stem, page.stem)) is None:  # to import it here would cost seconds
        pytest.skip(f"pip install 'grace-dl[{page.stem}]'")
    run_script(write_script(page, tmp_path), workers=workers)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "pycon")], ids=name)
def test_examples_with_prompts(page: Path) -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    output: list[str] = []
    for line, text in blocks(page, "pycon"):
        runner.run(parser.get_doctest(text, {}, name(page), str(page), line), out=output.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(output)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_fence_names_its_language(page: Path) -> None:
    fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(fences[::2]) <= {"python", "pycon", "console", "text", "toml", "bibtex", "json"}
    assert set(fences[1::2]) <= {""}


def read_index(text: str) -> dict[str, list[str]]:
    """The pages of each group: the tables of docs/index.md."""
    parts = re.split(r"^## (\w+)$", text, flags=re.MULTILINE)[1:]
    return {
        group: re.findall(r"^\| \[[^\]]+\]\(([^)]+)\)", table, re.MULTILINE)
        for group, table in zip(parts[::2], parts[1::2], strict=True)
    }


def read_nav(text: str) -> dict[str, list[str]]:
    """The pages of each group: the nav of mkdocs.yml."""
    parts = re.split(r"^  - (\w+):$", text.partition("\nnav:\n")[2], flags=re.MULTILINE)[1:]
    return {
        group: re.findall(r"- ((?:concepts|data)/.+)", pages)
        for group, pages in zip(parts[::2], parts[1::2], strict=True)
    }


def test_pages_stand_in_five_groups_of_the_index_and_of_the_site() -> None:
    groups = read_index((ROOT / "docs/index.md").read_text(encoding="utf-8"))
    words, methods = groups.pop("Words"), groups["Reference"].pop()
    assert (words, methods) == ([], "methods/index.md")
    assert list(groups) == ["Use", "Understand", "Extend", "Measure", "Reference"]
    listed = [page for pages in groups.values() for page in pages]
    there = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.parent.name in ("concepts", "data")]
    assert sorted(listed) == sorted(there)
    assert len(CONCEPTS) <= 36, "another topic is a section of a page that is there"
    nav = read_nav((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert {group: sorted(pages) for group, pages in nav.items() if group != "Start"} == {
        group: sorted(pages) for group, pages in groups.items()
    }


@pytest.mark.parametrize("page", CONCEPTS, ids=name)
def test_a_page_begins_with_what_it_is_for(page: Path) -> None:
    title, _, first, *_ = page.read_text(encoding="utf-8").split("\n")
    assert re.match(r"# [A-Z]\w", title)
    assert re.match(r"For \w", first), f"{name(page)} says first for whom it is, and what it is for"


def test_no_page_is_longer_than_a_reader() -> None:
    """Generated data and measurements live in docs/data."""
    assert [name(page) for page in CONCEPTS if len(page.read_text(encoding="utf-8")) > 21_000] == []


def test_the_tree_of_errors_is_the_one_in_the_code() -> None:
    import grace.errors

    tree = (grace.errors.__doc__ or "").partition("::")[2]
    (_, shown), *_ = blocks(ROOT / "docs/concepts/errors.md", "text")
    assert [line.strip() for line in tree.strip().splitlines()] == [line.strip() for line in shown.strip().splitlines()]
