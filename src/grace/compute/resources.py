"""Resources of the machine that this process may use: cores, memory, threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

_CONTROL_GROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))
_MEMORY = Path("/proc/meminfo")
LARGE_PAGE = 2 << 20  # bytes
_HUGE = 14  # MADV_HUGEPAGE


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


def ask_for_large_pages(memory: Tensor) -> bool:
    """Asks the system to lay large pages under this memory, contiguous and of any shape, which nobody has written yet: then a
    processor looks up fewer addresses. Whether it was asked: on Linux, where there are whole large pages.
    """
    first = -(-memory.data_ptr() // LARGE_PAGE) * LARGE_PAGE
    size = (memory.data_ptr() + memory.nbytes - first) // LARGE_PAGE * LARGE_PAGE
    advise = _advise()
    return size > 0 and memory.is_cpu and advise is not None and advise(first, size, _HUGE) == 0


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
