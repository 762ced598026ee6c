"""The markdown files of the project, and the code in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for folder in ("docs", "benchmarks") for page in sorted((ROOT / folder).rglob("*.md"))),
]


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """Line and text of each fenced block in this language."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def script(path: Path) -> str:
    """All Python blocks of a page as one script, each line where it stands in the page."""
    lines: list[str] = []
    for line, code in blocks(path, "python"):
        lines += [""] * (line - 1 - len(lines)) + code.splitlines()
    return "\n".join(lines) + "\n"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(*command: str, cwd: Path, seconds: int = 120) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments; fails with what it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


def torchrun(path: Path, workers: int = 2) -> str:
    options = ("--standalone", f"--nproc-per-node={workers}")
    return run("-m", "torch.distributed.run", *options, str(path), cwd=path.parent).stdout
