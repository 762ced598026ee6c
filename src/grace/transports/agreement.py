"""Before anything is exchanged: all ranks compare how they were configured."""

from __future__ import annotations

import json
from collections.abc import Mapping

from grace.errors import AbsentError, FingerprintMismatch
from grace.transports.base import Transport

SECONDS = 45.0  # how long the slowest rank may take


def agree(fingerprint: Mapping[str, str], transport: Transport, *, seconds: float | None = None) -> None:
    """Compares ``fingerprint`` with those of the other ranks of the transport, all of which must call this.

    Raises:
        FingerprintMismatch: on every rank, if two differ (the message says in what), or if a rank did not come in time.
        TransportError: the ranks could not be reached.
    """
    limit = SECONDS if seconds is None else seconds
    try:
        texts = transport.tell(json.dumps(dict(fingerprint)), seconds=limit)
    except AbsentError as error:
        who = f"ranks {error.ranks}" if error.ranks else "some ranks"
        raise FingerprintMismatch(
            f"{who} did not attach Grace within {limit:.0f} s of rank {transport.rank}: they failed earlier, or attach "
            "another number of models"
        ) from error
    if text := describe_differences({rank: json.loads(told) for rank, told in enumerate(texts)}):
        raise FingerprintMismatch(f"ranks are configured differently. {text}")


def describe_differences(prints: Mapping[int, Mapping[str, str]], most: int = 5) -> str:
    """What differs between the ranks' fingerprints, in words; empty if nothing does."""
    found = []
    for key in dict.fromkeys(key for one in prints.values() for key in one):
        values: dict[str, list[int]] = {}
        for rank, one in prints.items():
            values.setdefault(one.get(key, "absent"), []).append(rank)
        if len(values) > 1:
            found.append(f"{key}: " + ", ".join(f"{value} on ranks {ranks}" for value, ranks in values.items()))
    more = f"; and {len(found) - most} more" if len(found) > most else ""
    return "; ".join(found[:most]) + more
