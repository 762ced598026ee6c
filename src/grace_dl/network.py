"""The transports between the workers of a script that was written for GRACE, whatever started it."""

from __future__ import annotations

import sys
import weakref

from grace.transports.agreement import SECONDS
from grace.transports.base import Transport
from grace.transports.choose import choose, transport

_kind: str | None = None  # which transport; chosen once, since what is initialized changes while a script runs
_shared: Transport | None = None
_opened: list[weakref.ref[Transport]] = []


def open_transport() -> Transport:
    """A new transport, which the caller closes. All ranks call it alike."""
    global _kind
    if _kind is None:
        _kind = choose("auto").name
    made = transport(_kind)
    _opened.append(weakref.ref(made))
    return made


def shared_transport() -> Transport:
    """The one transport that everything in the script's own thread shares, one call after another."""
    global _shared
    if _shared is None:
        made = open_transport()
        made.all_gather_text("grace_dl", seconds=SECONDS)  # all are here
        _shared = made
    return _shared


def find_world() -> int | None:
    """Number of workers of the job, if it has begun; None otherwise."""
    if _shared is not None:
        return _shared.world
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    return None


def fail(error: BaseException) -> None:
    """Ends all transports that were opened here: workers that wait for this one hear of it at once."""
    for reference in _opened:
        made = reference()
        if made is not None:
            made.close(error)


def leave() -> None:
    """Ends :func:`shared_transport`; the next call opens a new one. All ranks call it alike."""
    global _kind, _shared
    made, _kind, _shared = _shared, None, None
    if made is not None:
        made.close()
