"""A Python that has Horovod: this one; the one that GRACE_TEST_HOROVOD names; or, where that is 1, one that is built."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import grace

VARIABLE = "GRACE_TEST_HOROVOD"
ROOT = Path(__file__).resolve().parents[2]


def find_python() -> Path:
    """The Python, or a skip that says how to get one."""
    if importlib.util.find_spec("horovod") is not None:
        return Path(sys.executable)
    asked = os.environ.get(VARIABLE, "0")
    if asked == "0":
        pytest.skip(f"Horovod is not installed; {VARIABLE}=1 builds it, or names a Python that has it, and pytest")
    if asked == "1":
        folder = ROOT / "build/horovod"
        subprocess.run([ROOT / "tests/distributed/build_horovod.sh", sys.executable, folder], check=True)
        return folder / "venv/bin/python"
    return Path(asked)


def horovodrun(workers: int, arguments: list[str], python: Path) -> list[str]:
    """The Python under Horovod's launcher, with the packages that this one sees, and Grace from here."""
    paths = [str(Path(grace.__file__).parents[1]), str(ROOT)]
    launcher = [str(python.with_name("horovodrun")), "-np", str(workers), "--gloo", "-H", f"localhost:{workers}"]
    return ["env", f"PYTHONPATH={os.pathsep.join(paths)}", *launcher, str(python), *arguments]
