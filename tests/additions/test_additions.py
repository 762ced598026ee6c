"""Additions in docs/concepts/architecture.md: one of each, made in a copy of the tree, passes what must pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.additions.tree import ROOT, Tree, differing
from tests.additions.wanted import ADDITIONS, Addition

PAGE = ROOT / "docs/concepts/architecture.md"
NATIVE = {"native/signatures.h", "native/tests/kernels.h"}
FUZZED = "native/tests/fuzz_decoders.cc"  # names decoders, too


def read_table(text: str) -> dict[str, tuple[int, int]]:
    """Reads the table: addition -> files by hand, files that a command writes."""
    rows = re.findall(r"^\| ([^|]+) \| (\d+): [^|]+ \| ([^|]*) \|$", text, flags=re.MULTILINE)
    return {what: (int(by_hand), int((re.match(r"\d+", written) or ["0"])[0])) for what, by_hand, written in rows}


def find_wrong(table: dict[str, tuple[int, int]], addition: Addition) -> str:
    """Errors of the table about an addition's files by hand; empty if there are none."""
    (row,) = [what for what in table if what.startswith(addition.what)]
    told = table[row][0]
    return "" if told == addition.by_hand else f"{row}: {told} files by hand, and there are {addition.by_hand}"


@pytest.mark.parametrize("name", ADDITIONS)
def test_the_table_counts_what_one_writes(name: str) -> None:
    assert find_wrong(read_table(PAGE.read_text()), ADDITIONS[name]) == ""


def test_a_table_that_undercounts_is_caught() -> None:
    """Catches "a wrong number in the table of additions"."""
    page = re.sub(r"^(\| transport \| )\d", r"\g<1>2", PAGE.read_text(), flags=re.MULTILINE)
    assert "transport: 2 files by hand" in find_wrong(read_table(page), ADDITIONS["transport"])


def test_what_is_added_passes_its_tests_and_the_laws_without_being_listed(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for addition in ADDITIONS.values():
        tree.add(addition)
    own = [path for addition in ADDITIONS.values() for path in addition.files if path.startswith("tests/")]
    wanted = " or ".join(f"({addition.gate})" for addition in ADDITIONS.values())
    output = tree.check("tests/laws/test_laws.py", *own, "-k", wanted, "-vv")
    for addition in ADDITIONS.values():
        assert f"/test_{addition.word}.py::" in output
    for addition in (ADDITIONS["method"], ADDITIONS["memory"], ADDITIONS["communicator"]):
        assert re.search(rf"test_laws.py::test_agreement\S*{addition.word}", output), "no law has seen it"


@pytest.mark.night("a wrong number in the table of additions")
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", ADDITIONS)
def test_an_addition_alone(name: str, tmp_path: Path) -> None:
    """Nothing else has to be touched: style, types, arrows, generated files, goldens and laws are right."""
    addition, tree = ADDITIONS[name], Tree(tmp_path)
    tree.add(addition)
    before = tree.read()
    for command in (["-m", "tests.golden.make"], ["docs/generate.py"]):  # make goldens docs
        done = tree.run(command)
        assert done.returncode == 0, done.stdout + done.stderr
    written = differing(before, tree.read(), addition.files)
    (row,) = [cells for what, cells in read_table(PAGE.read_text()).items() if what.startswith(addition.what)]
    assert len(written) == row[1], written
    checks = ("tests/docs/test_generated.py", "tests/docs/test_changelog.py", "tests/unit/test_exports.py",
              "tests/unit/test_docstrings.py", "tests/unit/registry")  # fmt: skip
    tree.check(*checks)
    tree.check(*addition.night)
    for command in (
        ["-m", "ruff", "check", "."],
        ["-m", "mypy"],
        ["-c", "from importlinter.cli import lint_imports_command as run; run()"],
    ):
        done = tree.run(command)
        assert done.returncode == 0, done.stdout + done.stderr


def _files_that_name(word: str) -> set[str]:
    """Sources with the kernel's name, and bindings that declare or call it: others may call an operation of its name, or have
    tables of its calls.
    """
    sources = [file for file in (ROOT / "native").rglob("*") if file.suffix in (".cc", ".h")]
    bindings = list((ROOT / "src/grace").rglob("native.py"))
    named = [(file, rf"\b{word}\b") for file in sources] + [
        (file, rf'(?<!_call\(factors, )"{word}"|\bc\.{word}\(') for file in bindings
    ]
    return {str(file.relative_to(ROOT)) for file, pattern in named if re.search(pattern, file.read_text())}


def test_a_native_kernel_is_named_where_the_table_says() -> None:
    """As the kernels are that there are: an operation that exists has its tests already."""
    names = re.findall(r"^GRACE_KERNEL\((\w+),", (ROOT / "native/signatures.h").read_text(), flags=re.MULTILINE)
    told, _ = read_table(PAGE.read_text())["native kernel of an operation that exists"]
    counts = []
    for name in names:
        files = _files_that_name(name)
        sources = [path for path in files if path.startswith("native/kernels/")]
        assert files >= NATIVE, name
        assert sources, name
        assert any(path.endswith("native.py") for path in files), name
        counts.append(len(files - {FUZZED}))
    assert min(counts) == told
    assert sum(count == told for count in counts) > 0.9 * len(counts), "some have names that are words of their own"


def test_a_triton_kernel_is_named_where_the_table_says() -> None:
    told, _ = read_table(PAGE.read_text())["Triton kernel of an operation that exists"]
    tests = ROOT / "tests/unit/kernels"
    table = tests / "test_triton_skipped.py"
    cases = sorted({*tests.glob("test_triton*.py")} - {table})
    texts = ["".join(file.read_text() for file in files) for files in (cases, [table])]
    kernels = ROOT / "src/grace/kernels"
    for file in (*kernels.glob("*/**/triton.py"), *kernels.glob("*/**/triton/__init__.py")):
        folder = file.parent if file.name == "triton.py" else file.parent.parent
        if "@triton.jit" not in file.read_text() or "@operation" not in (folder / "__init__.py").read_text():
            continue  # it launches another family's, or has parts of others' kernels
        family = folder.name
        law = ROOT / f"tests/laws/test_{family}.py"  # of a family that serves a bucket
        of_family = [texts[0] + (law.read_text() if law.exists() else ""), *texts[1:]]
        words = "|".join(
            [family, f"test_{family}", *re.findall(r"^def ([a-z]\w+)", file.read_text(), flags=re.MULTILINE)]
        )
        assert 1 + sum(bool(re.search(rf"\b({words})\b", text)) for text in of_family) == told, family
