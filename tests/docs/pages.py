"""The markdown files of the project, and the code in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for folder in ("docs", "benchmarks") for page in sorted((ROOT / folder).rglob("*.md"))),
]


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """Line and text of each fenced block in this language."""
    text = path.read_text(encoding="utf-8")
    matches = re.finditer(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in matches]


def script(path: Path, after: str = "") -> str:
    """All Python blocks of a page as one script, each line where it stands there; ``after``: those below this heading."""
    text, lines = path.read_text(encoding="utf-8"), list[str]()
    assert after in text, f"{name(path)} has no {after!r}"
    begin = text[: text.index(after)].count("\n")
    for line, code in blocks(path, "python"):
        if line < begin:
            continue
        lines += [""] * (line - 1 - len(lines)) + code.splitlines()
    return "\n".join(lines) + "\n"


def write_script(path: Path, folder: Path, before: str = "") -> Path:
    """The script of a page as a file, whose name and line numbers are those of the page. ``before``: a line of code that comes
    first, in place of the page's title.
    """
    file, text = folder / f"{path.stem}.md.py", script(path)
    assert text.startswith("\n"), f"{name(path)} begins with code"
    file.write_text(before + text, encoding="utf-8")
    return file


def run_blocks(path: Path) -> None:
    """Runs a page as a module of its own, block by block; a traceback names the page and the line."""
    module = ModuleType(f"page_{path.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    try:
        for line, code in blocks(path, "python"):
            exec(compile("\n" * (line - 1) + code, str(path), "exec", dont_inherit=True), module.__dict__)
    finally:
        del sys.modules[module.__name__]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(*command: str, cwd: Path, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments; fails with what it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


def torchrun(path: Path, *arguments: str, workers: int = 2, seconds: float = PATIENCE) -> str:
    options = ("--standalone", f"--nproc-per-node={workers}")
    return run("-m", "torch.distributed.run", *options, str(path), *arguments, cwd=path.parent, seconds=seconds).stdout
