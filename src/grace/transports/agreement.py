"""Comparisons between ranks before they go on: configurations at the start, and states when they load."""

from __future__ import annotations

import json
from collections.abc import Mapping

from grace.errors import AbsentError, FingerprintMismatch
from grace.transports.base import Transport

SECONDS = 45.0  # how long the slowest rank may take


ATTACH = "attach Grace", "attach another number of models"


def agree(
    fingerprint: Mapping[str, str],
    transport: Transport,
    *,
    seconds: float | None = None,
    doing: tuple[str, str] = ATTACH,
) -> None:
    """Compares ``fingerprint`` with those of the other ranks of the transport, all of which must call this.

    doing: what all ranks do here, and what else those may do that do not come: for the error.

    Raises:
        FingerprintMismatch: on every rank, if two differ (the message says how), or if a rank did not come in time.
        TransportError: the ranks could not be reached.
    """
    limit = SECONDS if seconds is None else seconds
    try:
        texts = transport.all_gather_text(json.dumps(dict(fingerprint)), seconds=limit)
    except AbsentError as error:
        who = f"ranks {error.ranks}" if error.ranks else "some ranks"
        raise FingerprintMismatch(
            f"{who} did not {doing[0]} within {limit:.0f} s of rank {transport.rank}: they failed earlier, or {doing[1]}"
        ) from error
    if text := describe_differences({rank: json.loads(told) for rank, told in enumerate(texts)}):
        raise FingerprintMismatch(f"ranks are configured differently. {text}")


def compare_loads(transport: Transport, problem: str | None, common: Mapping[str, str]) -> str:
    """Before states are loaded: tells all ranks whether this one can load, and compares what states must have in common.

    Args:
        transport: between the ranks.
        problem: why this rank cannot load its state; None if it can.
        common: values by name; the same on all ranks, if their states belong together.

    Returns:
        Why no rank may load, in words; empty if all can.
    """
    try:
        texts = transport.all_gather_text(json.dumps({"problem": problem, "common": dict(common)}), seconds=SECONDS)
    except AbsentError as error:
        who = f"ranks {error.ranks}" if error.ranks else "some ranks"
        return f"{who} did not load a state within {SECONDS:.0f} s: all ranks load, each its own; nothing has changed"
    told = [json.loads(text) for text in texts]
    for rank, report in enumerate(told):
        if report["problem"] is not None:
            return f"rank {rank} cannot load its state, so no rank does: {report['problem']}"
    text = describe_differences({rank: report["common"] for rank, report in enumerate(told)})
    return f"the states do not belong together, so no rank loads. {text}" if text else ""


def describe_differences(prints: Mapping[int, Mapping[str, str]], most: int = 5) -> str:
    """The differences between the ranks' fingerprints, in words; empty if there are none."""
    differences = []
    for key in dict.fromkeys(key for report in prints.values() for key in report):
        values: dict[str, list[int]] = {}
        for rank, report in prints.items():
            values.setdefault(report.get(key, "absent"), []).append(rank)
        if len(values) > 1:
            differences.append(f"{key}: " + ", ".join(f"{value} on ranks {ranks}" for value, ranks in values.items()))
    more = f"; and {len(differences) - most} more" if len(differences) > most else ""
    return "; ".join(differences[:most]) + more
