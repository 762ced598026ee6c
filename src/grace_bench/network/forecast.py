"""What the link model predicts from a measured run for other networks and numbers of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grace_bench.network.links import Link, link
from grace_bench.network.model import Work, exchange_seconds, step_seconds
from grace_bench.network.probe import Probe, Timing
from grace_bench.results import Document, Result, Terms


def forecast(document: Document, cores: float) -> Callable[[Link, int], float] | None:
    """A function that predicts the seconds of a step from a link and a number of workers; None for a run that failed or has
    no prediction itself.

    A worker computes and encodes as it did, on ``cores`` cores of its own. Its collectives grow with the workers as
    their algorithms do; decoding more workers' payloads is not counted.
    """
    if not isinstance(document, Result) or document.prediction is None or document.prediction.terms is None:
        return None
    terms, world = document.prediction.terms, document.workers
    probe = Probe(link(document.link.name, document.link.latency_seconds or 0.0), world, 0)
    probe.cores = max(1, round(terms.cores_per_worker * world))
    for kind, told in terms.collectives.items():
        seconds = [ms / 1000 for ms in told.probed_ms]
        probe.timings[kind] = Timing(list(told.probed_bytes), seconds, told.cpu_ns_per_byte / 1e9)
    return lambda there, count: step_seconds(_work(terms, probe, there, count, cores))


def _work(terms: Terms, probe: Probe, there: Link, world: int, cores: float) -> Work:
    exchange = moving = 0.0
    kinds = terms.collectives
    for kind, told in kinds.items():
        count, size = _grow(kind, told.per_step, told.bytes_per_step / told.per_step, kinds, probe.world, world)
        exchange += exchange_seconds(probe, kind, count, size, terms.shares, world, there)
        moving += count * size * told.cpu_ns_per_byte / 1e9
    return Work(
        compute=terms.compute_cpu_ms / 1000,
        threads=terms.threads,
        ready=tuple(terms.ready),
        shares=tuple(terms.shares),
        codec=terms.codec_cpu_ms / 1000,
        exchange=exchange,
        moving=moving,
        cores=cores,
    )


def _grow(kind: str, count: float, size: float, kinds: dict[str, Any], before: int, after: int) -> tuple[float, float]:
    """How many collectives of this kind there are, and of what size, with another number of workers: an all-gather beside an
    all-to-all carries chunks; each worker sends the server a message; without a server each worker broadcasts.
    """
    if kind == "AllGather" and "AllToAll" in kinds:
        return count, size * before / after
    if kind == "Permute":
        return count * (after - 1) / max(1, before - 1), size
    if kind == "Broadcast" and "Permute" not in kinds:
        return count * after / before, size
    return count, size
