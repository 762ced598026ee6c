"""`make night`: each part to its end, whatever became of those before it. Then a line for each says whether it held and how
long it took, and the exit is 1 if one did not hold.

    python -m tests.night "NAME: COMMAND" ...
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """What became of a part: the exit of its command, and seconds of the clock."""

    name: str
    exit: int
    seconds: float

    def __str__(self) -> str:
        state = "held" if self.exit == 0 else f"failed, exit {self.exit}"
        return f"{self.seconds / 60:7.1f} minutes  {self.name}: {state}"


def run(parts: Sequence[str]) -> Iterator[Part]:
    """Runs ``"NAME: COMMAND"``, one after the other."""
    for text in parts:
        name, _, command = text.partition(": ")
        sys.stdout.write(f"\n==== {name}\n")
        sys.stdout.flush()
        began = time.monotonic()
        code = subprocess.run(command, shell=True, check=False).returncode
        yield Part(name, code, time.monotonic() - began)


def main(parts: Sequence[str]) -> int:
    ended: list[Part] = []
    try:
        ended.extend(run(parts))  # one at a time: what Ctrl-C leaves is told, too
    finally:
        left = [text.partition(": ")[0] for text in parts[len(ended) :]]
        sys.stdout.write("\n".join(["", *map(str, ended), *(f"    not run to its end  {name}" for name in left), ""]))
    return int(any(part.exit for part in ended))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
