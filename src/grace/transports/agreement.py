"""Before anything is exchanged: all ranks compare how they were configured, over the store of the process group.

The store needs no collective, so that ranks that differ find out without hanging in one, and no group is poisoned.
"""

from __future__ import annotations

import collections
import datetime
import hashlib
import json
import os
from collections.abc import Mapping, Sequence

import torch.distributed as dist

from grace.errors import FingerprintMismatch

SECONDS = 45.0  # how long the slowest rank may take
_attempts: collections.Counter[tuple[int, ...]] = collections.Counter()  # by ranks: not all are in every group


def agree(fingerprint: Mapping[str, str], ranks: Sequence[int], *, seconds: float = SECONDS) -> None:
    """Compares ``fingerprint`` with those of the other ``ranks`` (global), all of which must call this.

    Raises:
        FingerprintMismatch: on every rank, if two differ (the message says in what), or if a rank did not come in time.
    """
    store = dist.distributed_c10d._get_default_store()
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    group = tuple(ranks)
    _attempts[group] += 1
    prefix = f"grace/{restart}/{hashlib.sha256(repr(group).encode()).hexdigest()[:16]}/{_attempts[group]}"
    store.set(f"{prefix}/{dist.get_rank()}", json.dumps(dict(fingerprint)))
    prints = {}
    absent = []
    deadline = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
    for rank in ranks:
        left = max(deadline - datetime.datetime.now(), datetime.timedelta(seconds=1))
        try:
            store.wait([f"{prefix}/{rank}"], left)
        except RuntimeError:
            absent.append(rank)
        else:
            prints[rank] = json.loads(store.get(f"{prefix}/{rank}"))
    if absent:
        raise FingerprintMismatch(
            f"ranks {absent} did not attach Grace within {seconds:.0f} s of rank {dist.get_rank()}: they failed earlier, "
            "or attach another number of models"
        )
    if difference := differences(prints):
        raise FingerprintMismatch(difference)


def differences(prints: Mapping[int, Mapping[str, str]], most: int = 5) -> str:
    """What differs between the ranks' fingerprints, in words; empty if nothing does."""
    found = []
    for key in dict.fromkeys(key for one in prints.values() for key in one):
        values: dict[str, list[int]] = {}
        for rank, one in prints.items():
            values.setdefault(one.get(key, "absent"), []).append(rank)
        if len(values) > 1:
            found.append(f"{key}: " + ", ".join(f"{value} on ranks {ranks}" for value, ranks in values.items()))
    if not found:
        return ""
    more = f"; and {len(found) - most} more" if len(found) > most else ""
    return "ranks are configured differently. " + "; ".join(found[:most]) + more
