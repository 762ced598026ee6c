"""The kernels on ARM: what they write under an emulator is what they write here, to the bit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMPILER, EMULATOR, LIBRARIES = (
    "aarch64-linux-gnu-g++",
    ("qemu-aarch64-static", "qemu-aarch64"),
    "/usr/aarch64-linux-gnu",
)


def differing(ours: str, theirs: str) -> list[str]:
    """The kernels and sizes whose digests are not the same, or that only one of them has."""
    first, second = (dict(line.rsplit(": ", 1) for line in text.splitlines()) for text in (ours, theirs))
    return sorted(case for case in {*first, *second} if first.get(case) != second.get(case))


def test_a_kernel_that_differs_is_named() -> None:
    """Catches "a kernel that differs on another processor"."""
    ours = " finite 3 0 1: 0a\n topk topk_wire 5 0 2: 0b\n words 5 0 2: 0c"
    assert differing(ours, ours) == []
    assert differing(ours, ours.replace("0b", "1b")) == [" topk topk_wire 5 0 2"]
    assert differing(ours, ours.removesuffix("\n words 5 0 2: 0c")) == [" words 5 0 2"]


def missing() -> str:
    """Tools that this needs and that are not installed."""
    wanted = {"cmake": ("cmake",), "g++-aarch64-linux-gnu": (COMPILER,), "qemu-user-static": EMULATOR}
    return ", ".join(package for package, names in wanted.items() if not any(map(shutil.which, names)))


def digests(folder: str, runner: list[str], *options: str) -> str:
    """Builds the tests of the kernels in a folder of ``build`` and runs them; what is built stays there."""
    where = ROOT / "build" / folder
    configure = ["cmake", "-S", "native", "-B", where, "-DCMAKE_BUILD_TYPE=Release", "-DGRACE_TESTS=ON", *options]
    for command in (configure, ["cmake", "--build", where, "--parallel", "2", "--target", "test_kernels"]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = [*runner, where / "tests" / "test_kernels", "digest"]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout


@pytest.mark.timeout(1800)  # two whole builds
@pytest.mark.night("a kernel that differs on another processor")
@pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}: apt-get install it")
def test_neon_has_the_bits_of_other_processors() -> None:
    emulator = next(name for name in EMULATOR if shutil.which(name))
    ours = digests("native-base", [], "-DGRACE_BASE_ONLY=ON")
    theirs = digests(
        "native-arm", [emulator, "-L", LIBRARIES], "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={COMPILER}",
    )  # fmt: skip
    assert len(ours.splitlines()) > 2000
    assert differing(ours, theirs) == []
