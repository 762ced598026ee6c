"""Built data are kept once for each machine, in ``$GRACE_CACHE``, ``$XDG_CACHE_HOME/grace`` or ``~/.cache/grace``."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from filelock import FileLock

from grace_bench.tasks.embedded.chunks import Array

_HASHED = 12


def cache_folder() -> Path:
    """Folder where built data are kept."""
    if own := os.environ.get("GRACE_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "grace"


def load_or_build(name: str, key: object, build: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """The result of ``build``, from the cache if it is there.

    Of several processes that ask at once, one builds and the others wait for it. An entry is there whole or not at all.
    Arrays are mapped copy-on-write: workers share the pages. Where nothing can be kept (no permission, a full disk), the
    data are built in memory.

    Args:
        name: of the data.
        key: all that ``build`` depends on; its repr is hashed, with NumPy's version and the programs of this folder.
        build: makes the arrays.
    """
    with contextlib.ExitStack() as held:
        try:
            folder = cache_folder() / f"{name}-{_hash(key)}"
            folder.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(folder.with_suffix(".lock")))  # torch depends on it
        except (OSError, RuntimeError):  # RuntimeError: a user without a home
            return build()
        cached = _read(folder)
        return _build(folder, build) if cached is None else cached


def _hash(key: object) -> str:
    hasher = hashlib.sha256(repr((key, np.__version__)).encode())
    for program in sorted(Path(__file__).parent.glob("*.py")):
        hasher.update(program.read_bytes())  # a changed program makes other data
    return hasher.hexdigest()[:_HASHED]


def _read(folder: Path) -> dict[str, Array] | None:
    try:
        return {
            file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in sorted(folder.iterdir())
        } or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError):  # somebody has damaged it
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _build(folder: Path, build: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    arrays = build()
    try:
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError:
        return arrays
    try:
        for name, array in arrays.items():
            np.save(scratch / f"{name}.npy", array)
        os.replace(scratch, folder)
    except OSError:  # a full disk, or another process was first
        shutil.rmtree(scratch, ignore_errors=True)
        return arrays
    return _read(folder) or arrays
