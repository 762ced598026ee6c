"""The folder through which a command and its workers talk."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from grace_bench.files import write_atomically


class Scratch:
    """The folder through which a command and its workers talk.

    Attributes:
        job: what is to be run. lifeline: a named pipe that the command holds open for as long as it lives.
    """

    def __init__(self, folder: Path):
        self.folder, self.job, self.lifeline = folder, folder / "job.json", folder / "lifeline"
        self._progress = folder / "progress"

    def log(self, rank: int) -> Path:
        """File that gets all that this worker prints."""
        return self.folder / f"worker.{rank}.log"

    def outcome(self, run: int) -> Path:
        """Place of a run's document once it has ended."""
        return self.folder / f"outcome.{run}.json"

    def report(self, run: int, done: int, steps: int) -> None:
        """Notes how many steps of this run are done."""
        write_atomically(self._progress, f"{run} {done} {steps}")

    def read_progress(self) -> tuple[int, int, int] | None:
        """The run, its steps done, and its steps in all; None before the first."""
        with contextlib.suppress(FileNotFoundError):
            run, done, steps = self._progress.read_text().split()
            return int(run), int(done), int(steps)
        return None

    def read_tail(self, lines: int = 30) -> str:
        """The last lines that the workers wrote."""
        texts = [path.read_text(errors="replace").rstrip() for path in sorted(self.folder.glob("worker.*.log"))]
        return "\n".join("\n".join(filter(None, texts)).splitlines()[-lines:])

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Makes the lifeline, and holds it for as long as the block lasts, or this process."""
        os.mkfifo(self.lifeline)
        line = os.open(self.lifeline, os.O_RDWR)
        try:
            yield
        finally:
            os.close(line)

    def watch(self, leave: Callable[[], None]) -> None:
        """Calls ``leave`` from a thread once nobody holds the lifeline any more: the command has ended, in whatever way."""

        def wait() -> None:
            with contextlib.suppress(OSError):  # the folder may be gone too
                line = os.open(self.lifeline, os.O_RDONLY | os.O_NONBLOCK)  # blocking, it would wait for a writer
                os.set_blocking(line, True)
                os.read(line, 1)
            leave()

        threading.Thread(target=wait, name="lifeline", daemon=True).start()
