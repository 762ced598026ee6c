"""What the network interface of this worker has counted."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_COUNTERS = Path("/proc/self/net/dev")  # of the namespace that this process is in; /sys shows the one it was mounted in


class Counted(NamedTuple):
    """Bytes since the interface was made, all headers included."""

    sent: int
    received: int


def counted(interface: str) -> Counted | None:
    """The counters of an interface; None if this process sees none of that name."""
    try:
        lines = _COUNTERS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            columns = numbers.split()
            return Counted(sent=int(columns[8]), received=int(columns[0]))
    return None
