"""Ports for workers that meet."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _ENOUGH = 10_000, 1_000


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this machine that nobody listens at: none of those that the system gives to whoever connects, since one of the
    connections that workers make meanwhile might get it.
    """
    try:
        end = int(_RANGE.read_text(encoding="ascii").split()[0])
    except OSError:  # not Linux
        end = 0
    while True:
        port = _FIRST + secrets.randbelow(end - _FIRST) if end >= _FIRST + _ENOUGH else 0
        with socket.socket() as free:
            try:
                free.bind((host, port))
            except OSError:
                continue
            return int(free.getsockname()[1])
