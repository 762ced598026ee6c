"""Counters of the network interface of this worker."""

from __future__ import annotations

from typing import NamedTuple

import psutil


class ByteCounts(NamedTuple):
    """Bytes since the interface was made, all headers included."""

    sent: int
    received: int


def read_counters(interface: str) -> ByteCounts | None:
    """The counters of an interface, in the network namespace of this process; None if it sees none of that name."""
    counters = psutil.net_io_counters(pernic=True, nowrap=False).get(interface)
    return None if counters is None else ByteCounts(counters.bytes_sent, counters.bytes_recv)
