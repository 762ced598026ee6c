"""Tells texts over a store of ``torch.distributed``. That takes no collective, so ranks that differ find out without hanging
in one, and no group is poisoned.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Sequence

import torch.distributed as dist

from grace.errors import AbsentError, TransportError


def all_gather_over_store(
    store: dist.Store, prefix: str, rank: int, world: int, text: str, seconds: float, ended: Sequence[str] = ()
) -> list[str]:
    """Everyone's text, in the order of the ranks. All ranks call it with the same ``prefix``, which nobody else uses.

    It ends only when all have read: a rank that then leaves, and takes the store along, leaves nobody without an answer. A
    rank that gives up takes its text back, so that a later rank does not take it for an answer.

    ``ended`` names prefixes of earlier calls by the same ranks. Once all have come to this one none waits in those, and what
    they left in the store is deleted.

    Raises:
        AbsentError: some ranks did not come within ``seconds``, or came and gave up.
        TransportError: the store is gone.
    """
    deadline = time.monotonic() + seconds
    own_key = f"{prefix}/{rank}"
    keys = [f"{prefix}/{other}" for other in range(world)]
    try:
        store.set(own_key, text)
        absent = [other for other, key in enumerate(keys) if not _appears(store, key, deadline)]
        if absent:
            store.delete_key(own_key)
            raise AbsentError(absent, f"ranks {absent} did not come within {seconds:.0f} s of rank {rank}")
        texts = [store.get(key).decode() for key in keys]
        with contextlib.suppress(RuntimeError):  # stores that cannot delete
            for earlier in ended if rank == 0 else ():
                store.delete_key(f"{earlier}/read")
                store.delete_key(f"{earlier}/readers")
        readers = store.add(f"{prefix}/readers", 1)
    except AbsentError:
        raise
    except RuntimeError as error:  # torch has no narrower class in all versions
        raise TransportError(
            f"rank {rank} of {world} has lost the store of the process group: the process that keeps it (rank 0's, or the "
            f"launcher's) has ended; its own error says why. torch says: {error}"
        ) from error
    all_have_read = True
    with contextlib.suppress(RuntimeError):  # the store is gone, but all had come
        if readers == world:
            store.set(f"{prefix}/read", "")
        else:
            all_have_read = _appears(store, f"{prefix}/read", time.monotonic() + seconds)
        store.delete_key(own_key)
    if not all_have_read:
        raise AbsentError([], f"some of {world} ranks did not hear of all others within {seconds:.0f} s")
    return texts


def _appears(store: dist.Store, key: str, deadline: float) -> bool:
    """True if the key appears by the deadline."""
    left = deadline - time.monotonic()
    if left <= 0.001:
        return bool(store.check([key]))
    try:
        store.wait([key], datetime.timedelta(seconds=left))
    except dist.DistStoreError:  # the time has passed
        return False
    return True
