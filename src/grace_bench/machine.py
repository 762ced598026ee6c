"""The machine, as far as it bears on numbers: processor, caches, load, versions."""

from __future__ import annotations

import contextlib
import datetime
import platform
from pathlib import Path

import numpy as np
import psutil
import torch

import grace
from grace.compute.resources import cores

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # psutil knows no caches,
_PROCESSORS = Path("/proc/cpuinfo")  # and no processor by name
_USUAL_CACHE = 32 << 20  # bytes of the last-level cache where the system does not tell
_BUSY = 0.5  # load per core above which times are doubtful


def load() -> float:
    """Processes that ran or wanted to, on average over the last minute."""
    return float(psutil.getloadavg()[0])


def is_busy(load: float | None, cores: int) -> bool:
    """True if times taken at this load are doubtful; ``load`` None: unknown."""
    return load is not None and load > _BUSY * cores


def busy_note() -> str | None:
    """A note that times are doubtful because the machine is doing something else; None if it is not."""
    now, count = load(), cores()
    if not is_busy(now, count):
        return None
    return f"note: the machine was busy (load {now:.1f} on {count} cores): times are doubtful"


def processor() -> str:
    """The name of the processor."""
    with contextlib.suppress(OSError):
        for line in _PROCESSORS.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def last_level_cache() -> int:
    """Bytes of the largest cache of this processor, as the system reports it; 32 MiB where it does not."""
    sizes = []
    for file in _CACHES.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = file.read_text().strip()
            sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]])
    return max(sizes, default=_USUAL_CACHE)


def now(precision: str = "seconds") -> str:
    """The time of this moment, for documents; ``precision``: "seconds" or "minutes"."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec=precision)


def versions() -> dict[str, str]:
    """The versions of everything that results depend on."""
    return {
        "grace": grace.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }
