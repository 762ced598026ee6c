"""Predictions of the link model from a measured run for other networks and numbers of workers."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from grace.collectives import Tally, split_kind
from grace.predict.costs import Probed
from grace.predict.links import Link, link
from grace.predict.probe import Timing, Timings
from grace_bench.runs.link_model import Work, step_seconds
from grace_bench.runs.results import CollectiveTerms, Document, Result


def forecast(document: Document, cores: float | None = None) -> Callable[[Link, int], float] | None:
    """A function that predicts the seconds of a step from a link and a number of workers; None for a run that failed or has
    no prediction itself.

    A worker computes and encodes as it did, on ``cores`` cores of its own; None: on as many as it had. Its collectives grow
    with the workers as their algorithms do; decoding more workers' payloads is not counted.
    """
    if not isinstance(document, Result) or document.prediction is None or document.prediction.terms is None:
        return None
    terms, world = document.prediction.terms, document.workers
    here = link(document.link.name, document.link.latency_seconds or 0.0)
    timings = Timings(here, world, max(1, round(terms.cores_per_worker * world)), {
        kind: Timing(list(told.probed_bytes), [ms / 1000 for ms in told.probed_ms], told.cpu_ns_per_byte / 1e9)
        for kind, told in terms.collectives.items()
    })  # fmt: skip

    def seconds(there: Link, count: int) -> float:
        work = Work(
            compute=terms.compute_cpu_ms / 1000,
            threads=terms.threads,
            ready=tuple(terms.ready),
            shares=tuple(terms.shares),
            codec=terms.codec_cpu_ms / 1000,
            moved=_grow(terms.collectives, world, count),
            cores=terms.cores_per_worker if cores is None else cores,
            axes={},
        )
        return step_seconds(work, Probed(timings, there), count)

    return seconds


def _grow(collectives: Mapping[str, CollectiveTerms], before: int, after: int) -> dict[str, Tally]:
    """The collectives of a step with another number of workers."""
    names = {split_kind(kind)[0] for kind in collectives}
    grown = {}
    for kind, told in collectives.items():
        times, larger = _growth(split_kind(kind)[0], names, before, after)
        grown[kind] = Tally(told.per_step * times, told.bytes_per_step * times * larger)
    return grown


def _growth(name: str, names: Container[str], before: int, after: int) -> tuple[float, float]:
    """Growth of the number of collectives of this class, and of their size, as factors, with another number of
    workers: an all-gather beside an all-to-all carries chunks; each worker sends the server a message; without a server each
    worker broadcasts.
    """
    if name == "AllGather" and "AllToAll" in names:
        return 1.0, before / after
    if name == "Permute":
        return (after - 1) / max(1, before - 1), 1.0
    if name == "Broadcast" and "Permute" not in names:
        return after / before, 1.0
    return 1.0, 1.0
