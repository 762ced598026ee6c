"""The link model: how long a run's step takes, from what it computes, encodes and moves.

The step is that of :mod:`grace.predict.costs`, over the network as the run's own probe has measured it. Nothing is fitted to
measured steps. A worker has its share of the cores, C/W, less if others use the machine: what the workers got of it while
they computed alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from grace.collectives import Tally
from grace.predict.costs import Carrier, Probed, phases, share_out
from grace.predict.probe import Probe, Timings
from grace.predict.timeline import bucket_readiness, hops, play, shares_of
from grace_bench.runs.results import CollectiveTerms, Prediction, Terms

if TYPE_CHECKING:
    from grace_bench.runs.config import RunConfig
    from grace_bench.runs.training import Measurements


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a step. Seconds of processor time, unless it says otherwise.

    Attributes:
        compute: forward, backward and optimizer. threads: that it uses.
        ready: when each bucket is ready, as shares of ``compute``, rising. shares: its share of codec and bytes.
        codec: encoding and decoding of all buckets, and the copies into them.
        moved: the collectives of all buckets, by kind.
        cores: of one worker: C/W.
        axes: of the grid on which the workers lie, and how many there are along each.
    """

    compute: float
    threads: int
    ready: tuple[float, ...]
    shares: tuple[float, ...]
    codec: float
    moved: Mapping[str, Tally]
    cores: float
    axes: Mapping[str, int]


def step_seconds(work: Work, network: Carrier, world: int) -> float:
    """Seconds of one step of ``world`` workers over a network."""
    jobs = [
        phases(share * work.codec, moved, network, world, work.axes)
        for share, moved in zip(work.shares, share_out(work.moved, work.shares), strict=True)
    ]
    return play(work.compute, work.threads, work.cores, work.ready, jobs)


def exchange_seconds(timings: Timings, kind: str, tally: Tally, shares: Sequence[float]) -> float:
    """Seconds of all collectives of one kind in a step. Buckets share them as they share the gradient: large messages can take
    longer than their bytes say, so their mean does not tell.
    """
    network, world = Probed(timings), timings.size_of(kind)
    return sum(network.move(kind, moved[kind], world)[1] for moved in share_out({kind: tally}, shares))


def predict(probe: Probe, config: RunConfig, model: nn.Module, measured: Measurements) -> Prediction:
    """The step time that the model predicts for a run, and how far it is from the measured one."""
    timings, steps = probe.timings, len(measured.seconds)
    tallies = {
        kind: Tally(tally.count / steps, tally.bytes / steps)
        for kind, tally in measured.steady.collectives.items()
        if tally.count
    }
    work = work_of(timings, config, model, measured, tallies)
    predicted_step = step_seconds(work, Probed(timings), config.workers)
    measured_step = statistics.median(measured.seconds)
    told = {kind: _describe(timings, kind, tally, work.shares) for kind, tally in tallies.items()}
    terms = Terms(
        compute_ms=1000 * statistics.median(measured.compute.seconds),
        compute_cpu_ms=1000 * work.compute,
        codec_cpu_ms=1000 * work.codec,
        exchange_ms=sum(exchange.ms_per_step for exchange in told.values()),
        moving_cpu_ms=1000 * moving_seconds(timings, tallies),
        cores_per_worker=work.cores,
        threads=work.threads,
        ready=list(work.ready),
        shares=list(work.shares),
        collectives=told,
    )
    return Prediction(1000 * predicted_step, predicted_step / measured_step - 1, terms)


def moving_seconds(timings: Timings, tallies: Mapping[str, Tally]) -> float:
    """Processor seconds of moving these bytes."""
    return sum(tally.bytes * timings.kinds[kind].cpu for kind, tally in tallies.items())


def _describe(timings: Timings, kind: str, tally: Tally, shares: Sequence[float]) -> CollectiveTerms:
    timing = timings.kinds[kind]
    return CollectiveTerms(
        per_step=tally.count,
        bytes_per_step=tally.bytes,
        ms_per_step=1000 * exchange_seconds(timings, kind, tally, shares),
        hop_us=1e6 * timing.latency / max(1, hops(kind, timings.size_of(kind))),
        probed_bytes=list(timing.sizes),
        probed_ms=[1000 * seconds for seconds in timing.seconds],
        cpu_ns_per_byte=1e9 * timing.cpu,
    )


def work_of(
    timings: Timings, config: RunConfig, model: nn.Module, measured: Measurements, tallies: Mapping[str, Tally]
) -> Work:
    """The work of a measured run in a step; ``tallies``: of a step."""
    steps = len(measured.seconds)
    compute, buckets = measured.compute, measured.buckets
    copied = timings.copying * sum(buckets)
    codec = measured.steady.codec_cpu
    if codec is None:  # torch's own hooks: what the process spent beyond computing and moving
        plain = measured.steady.codec is not None
        beyond = measured.cpu - compute.cpu - moving_seconds(timings, tallies) - copied
        codec = 0.0 if plain else max(0.0, steps * beyond)
    sizes = {name: p.numel() * p.element_size() for name, p in model.named_parameters()}
    ready = sorted((share, sizes[name]) for name, share in compute.ready.items())
    cores = timings.cores / config.workers
    wall, threads = statistics.median(compute.seconds), min(float(config.threads), cores)
    # if others use the machine too, a worker gets less than its share, to the degree that it did while computing alone
    got = min(1.0, max(0.05, compute.cpu / wall / threads))
    return Work(
        compute=wall * threads * got,
        threads=config.threads,
        ready=bucket_readiness(ready, buckets),
        shares=shares_of(buckets),
        codec=codec / steps + copied,
        moved=tallies,
        cores=cores * got,
        axes=timings.axes,
    )
