"""A copy of the tree, in which a test adds things and runs what must pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from grace.compute import native
from tests.additions.wanted import Addition

ROOT = Path(__file__).parents[2]
# An editable installation finds packages before PYTHONPATH does.
_SITE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "ScikitBuild" not in type(one).__name__]
"""


class Tree:
    """The files of the project that git knows or does not ignore, in a folder of their own."""

    def __init__(self, folder: Path):
        self.root, self.site = folder / "tree", folder / "site"
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        for name in filter(None, names):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.root / name)
        library = Path(native.library())
        if library.is_file():
            shutil.copyfile(library, self.root / "src/grace" / library.name)
        self.site.mkdir()
        (self.site / "sitecustomize.py").write_text(_SITE)

    def add(self, addition: Addition) -> None:
        """Writes what its author would write."""
        for path, text in addition.files.items():
            file = self.root / path
            assert not file.exists(), f"{path} is there already"
            file.write_text(text)
        for path, (line, before) in addition.lines.items():
            text = (self.root / path).read_text()
            assert text.count(line) == 1, f"{path} has changed; where does this line go now: {before!r}?"
            (self.root / path).write_text(text.replace(line, before + line))

    def read(self) -> dict[str, bytes]:
        """All files that a commit would have, as they are now."""
        names = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
        return {
            str(name): (self.root / name).read_bytes()
            for name in names
            if not {"__pycache__", "build", ".pytest_cache", ".hypothesis", ".mypy_cache"} & set(name.parts)
            and name.suffix not in (".so", ".dylib")
        }

    def run(self, command: Sequence[str], timeout: float = 1500.0) -> subprocess.CompletedProcess[str]:
        """Runs a module or script of Python in the copy, and with its packages."""
        path = os.pathsep.join(map(str, (self.site, self.root / "src", self.root)))
        env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.root,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def check(self, *arguments: str) -> str:
        """Runs pytest, which must find something and pass; what it says."""
        done = self.run(
            ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not night", *arguments]
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        return done.stdout


def differing(before: dict[str, bytes], after: dict[str, bytes], without: Iterable[str]) -> list[str]:
    """The files that are new, gone or other than before, without those that were written by hand."""
    return sorted({name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} - set(without))
