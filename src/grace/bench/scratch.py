"""The folder through which a run's parent and its workers talk: configuration, progress, errors, result."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.errors import ConfigurationError, GraceError, TransportError

_KILLED = re.compile(r"rank\s*: (\d+) [^\n]*\n\s*exitcode\s*: -(\d+) ")  # a block of torchrun's report


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file that is there whole or not at all."""
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
    """Checks that files can be written into this folder, by writing one; makes nothing that is not there yet.

    Raises:
        ConfigurationError: they cannot; says why.
    """
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        why = f"{there} is not a folder" if not there.is_dir() else f"{there}: {error.strerror}"
        raise ConfigurationError(f"nothing can be written to {path}: {why}; name another folder") from error


@dataclass(frozen=True, slots=True)
class WorkerError:
    """What ended a worker. ``expected``: an error that Grace raises on purpose, whose message says enough."""

    rank: int
    kind: str
    message: str
    trace: str
    expected: bool
    consequence: bool
    time: float

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.expected else self.trace.rstrip()


class Scratch:
    """Names of the files, and how they are read and written."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config = folder / "config.json"
        self.progress = folder / "progress"
        self.log = folder / "launcher.log"
        self.logs = folder / "logs"

    # ---- the workers' side ------------------------------------------------------------------------------------------
    def register(self, rank: int) -> None:
        """Notes that this process is the worker of that rank."""
        write_atomically(self.folder / f"pid.{rank}", str(os.getpid()))

    def report(self, run: int, done: int, steps: int) -> None:
        """So many steps of all are done in this run."""
        write_atomically(self.progress, f"{run} {done} {steps}")

    def fail(self, rank: int, error: BaseException) -> None:
        """Notes the error that ends the worker of that rank."""
        found = {
            "rank": rank,
            "kind": type(error).__name__,
            "message": str(error),
            "trace": "".join(traceback.format_exception(error)),
            "expected": isinstance(error, GraceError),
            # torch has no class of its own for gloo's lost connections
            "consequence": isinstance(error, TransportError) or "gloo" in str(error).lower(),
            "time": time.time(),
        }
        if self.folder.exists():  # else the parent is gone, and nothing is left behind
            write_atomically(self.folder / f"error.{rank}", json.dumps(found))

    # ---- the parent's side ------------------------------------------------------------------------------------------
    def result(self, run: int) -> Path:
        """Where the result of a run is once it has ended."""
        return self.folder / f"result.{run}.json"

    def reported(self) -> tuple[int, int, int] | None:
        """The run, its steps that are done, and all; None before the first."""
        with contextlib.suppress(FileNotFoundError):
            run, done, steps = self.progress.read_text().split()
            return int(run), int(done), int(steps)
        return None

    def pids(self) -> list[int]:
        """The workers that have started."""
        return [int(path.read_text()) for path in sorted(self.folder.glob("pid.*"))]

    def error(self) -> WorkerError | None:
        """The error that ended the run: the first; a lost connection only if there is no other."""
        errors: list[WorkerError] = []
        for path in self.folder.glob("error.*"):
            read: dict[str, Any] = json.loads(path.read_text())
            errors.append(WorkerError(**read))
        return min(errors, key=lambda e: (e.consequence, e.time), default=None)

    def killed(self) -> tuple[int, str] | None:
        """The rank that a signal ended, and the signal's name, as the launcher tells it; None if there is none."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        for rank, number in _KILLED.findall(text):
            if int(number) != signal.SIGTERM:  # that is how the launcher ends the others
                with contextlib.suppress(ValueError):
                    return int(rank), signal.Signals(int(number)).name
        return None

    def tail(self, lines: int = 30) -> str:
        """The last lines that the workers, or else the launcher, wrote."""
        texts = [path.read_text(errors="replace").rstrip() for path in sorted(self.logs.rglob("stderr.log"))]
        text = "\n".join(text for text in texts if text)
        if not text and self.log.exists():
            text = self.log.read_text(errors="replace").rstrip()
        return "\n".join(text.splitlines()[-lines:])
