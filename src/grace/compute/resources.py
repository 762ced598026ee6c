"""What of the machine this process may use: cores, memory, threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

_CONTROL_GROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))
_MEMORY = Path("/proc/meminfo")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that could be allocated: of the machine, and of the control group where it sets a limit. Where the system does
    not tell, half of what it has.
    """
    free = _free_memory()
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
        limit, used = (int(path.read_text()) for path in _CONTROL_GROUP)
        free = min(free, limit - used)
    return free


def _free_memory() -> int:
    with contextlib.suppress(OSError):
        for line in _MEMORY.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Within the block, torch and the kernels use this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
