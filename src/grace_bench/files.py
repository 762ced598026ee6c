"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from grace.errors import ConfigurationError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.chmod(name, 0o644)  # mkstemp's own mode is for secrets
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def require_folder(path: Path) -> None:
    """Checks that files can be written into this folder, by writing one; creates no folder.

    Raises:
        ConfigurationError: they cannot; the message says why.
    """
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        why = f"{there} is not a folder" if not there.is_dir() else f"{there}: {error.strerror}"
        raise ConfigurationError(f"nothing can be written to {path}: {why}; name another folder") from error
