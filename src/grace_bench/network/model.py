"""The link model: how long a step takes, from what it computes, encodes and moves.

A collective takes ``hops (alpha + latency) + wire bytes x seconds per byte``:

=============  ===============================  =============  =======================
collective     algorithm of gloo                hops           wire bytes of a worker
=============  ===============================  =============  =======================
AllReduce      ring, reduce then gather         2 (W-1)        2 N (W-1)/W
AllGather      ring                             W-1            N (W-1)
AllToAll       pairwise, all at once            W-1            N (W-1)/W
ReduceScatter  an all-reduce                    2 (W-1)        2 N (W-1)/W
Broadcast      binomial tree                    ceil(log2 W)   N ceil(log2 W)
Permute        one message                      1              N
=============  ===============================  =============  =======================

N: bytes of the buffer. alpha and the seconds per byte of each kind come from :mod:`grace_bench.network.probe`; at
another link speed, what it took beyond the line's own time scales with it, and moving bytes never takes less than its
processor time.

The step: the model's thread computes (measured without communication), and each bucket of gradients, once it is ready,
goes through the exchange: encode, move, decode, one bucket after the other. Both draw on the worker's share of the
cores, C/W (less if others use the machine: what the workers got of it while they computed alone), which a fair scheduler
divides: the one that needs less gets all it needs, the other the rest. The optimizer waits for both. Nothing is fitted
to measured steps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from grace.transports.timed import Tally
from grace_bench.network.links import Link
from grace_bench.network.probe import Probe
from grace_bench.results import CollectiveTerms, Prediction, Terms

if TYPE_CHECKING:
    from grace_bench.config import RunConfig
    from grace_bench.training import Measurements

FRAME = 1514 / 1448  # bytes on the wire for each byte of TCP's payload, at an MTU of 1,500
_TINY = 1e-12


def hops(kind: str, world: int) -> int:
    """How many messages follow one after the other."""
    if world == 1:
        return 0
    return {
        "AllReduce": 2 * (world - 1), "ReduceScatter": 2 * (world - 1), "AllGather": world - 1, "AllToAll": world - 1,
        "Broadcast": math.ceil(math.log2(world)), "Permute": 1,
    }[kind]  # fmt: skip


def wire_bytes(kind: str, size: float, world: int) -> float:
    """Bytes that pass one worker's link one after the other, for a buffer of ``size`` bytes."""
    if world == 1:
        return 0.0
    return {
        "AllReduce": 2 * size * (world - 1) / world, "ReduceScatter": 2 * size * (world - 1) / world,
        "AllGather": size * (world - 1), "AllToAll": size * (world - 1) / world,
        "Broadcast": size * math.ceil(math.log2(world)), "Permute": size,
    }[kind]  # fmt: skip


def line_seconds(link: Link) -> float:
    """Seconds of one byte of payload on the line; 0 where nothing is shaped."""
    return 0.0 if link.bits_per_second is None else 8 * FRAME / link.bits_per_second


def collective_seconds(
    probe: Probe, kind: str, size: float, world: int | None = None, link: Link | None = None
) -> float:
    """Seconds of one collective that nothing disturbs, here or with other workers and another link.

    Args:
        probe: has learned about ``kind``.
        kind: the collective's class.
        size: bytes of its buffer.
        world: workers, each with the same share of cores as here; None: as many as here.
        link: the link; None: the one here.
    """
    timing = probe.timings[kind]
    here = timing.at(size)
    if (world is None or world == probe.world) and (link is None or link == probe.link):
        return here
    world, link = world or probe.world, link or probe.link
    latency = timing.seconds[0]
    alpha = max(0.0, latency / max(1, hops(kind, probe.world)) - probe.link.latency)
    moved = wire_bytes(kind, size, probe.world)
    each = max(0.0, here - latency) / moved if moved else 0.0
    cpu = timing.cpu * size / moved * max(1.0, probe.world / probe.cores) if moved else 0.0
    line, line_here = line_seconds(link), line_seconds(probe.link)
    each = line * each / line_here if line and line_here else each
    return hops(kind, world) * (alpha + link.latency) + wire_bytes(kind, size, world) * max(each, line, cpu)


def exchange_seconds(
    probe: Probe,
    kind: str,
    count: float,
    size: float,
    shares: Sequence[float],
    world: int | None = None,
    link: Link | None = None,
) -> float:
    """Seconds of all collectives of one kind in a step: ``count``, of ``size`` bytes on average. Buckets share them as they
    share the gradient: large messages can take longer than their bytes say, so their mean does not tell.
    """
    each = count / len(shares)
    total = count * size
    return sum(each * collective_seconds(probe, kind, share * total / each, world, link) for share in shares)


@dataclass(frozen=True, slots=True)
class Work:
    """What a step does. Seconds of processor time, unless it says otherwise.

    Attributes:
        compute: forward, backward and optimizer. threads: that it uses.
        ready: when each bucket is ready, as shares of ``compute``, rising. shares: its share of codec and bytes.
        codec: encoding and decoding of all buckets, and the copies into them.
        exchange: seconds in which all collectives move undisturbed.
        moving: of moving these bytes.
        cores: of one worker: C/W.
    """

    compute: float
    threads: int
    ready: tuple[float, ...]
    shares: tuple[float, ...]
    codec: float
    exchange: float
    moving: float
    cores: float


def step_seconds(work: Work) -> float:
    """Seconds of one step; see the top of this file."""
    jobs = []
    for share in work.shares:
        codec = (share * work.codec / 2,) * 2
        jobs.append([codec, (share * work.moving, share * work.exchange), codec])
    return play(work.compute, work.threads, work.cores, work.ready, jobs)


def play(
    compute: float, threads: float, cores: float, ready: Sequence[float], jobs: Sequence[Sequence[tuple[float, float]]]
) -> float:
    """Seconds of a step whose buckets are exchanged one after the other, beside the computation.

    Args:
        compute: see :class:`Work`, as of the next three.
        threads: that compute.
        cores: of one worker.
        ready: of each bucket.
        jobs: of each bucket, its phases: (processor seconds, seconds undisturbed).
    """
    last = ready[-1] * compute if ready else compute
    now, done = 0.0, 0.0
    queue = [
        (at * compute, cpu, seconds) for at, job in zip(ready, jobs, strict=True) for cpu, seconds in job if seconds > 0
    ]
    left = queue[0][2] if queue else 0.0  # undisturbed seconds of the first phase
    while done < last - _TINY or queue:
        computing = done < last - _TINY
        moving = bool(queue) and done >= queue[0][0] - _TINY
        wants = queue[0][1] / queue[0][2] if moving else 0.0  # cores, at full speed
        mine, theirs = _fair(float(threads) if computing else 0.0, wants, cores)
        speed = theirs / wants if wants > 0 else 1.0
        events = []
        if computing:
            until = min([at for at, _, _ in queue if at > done + _TINY] + [last])
            events.append((until - done) / mine)
        if moving:
            events.append(left / speed)
        span = min(events)
        now += span
        done = min(done + mine * span, last)
        if moving:
            left -= speed * span
            if left <= _TINY:
                queue.pop(0)
                left = queue[0][2] if queue else 0.0
    rest = compute - last
    return now + rest / _fair(float(threads), 0.0, cores)[0]


def _fair(mine: float, theirs: float, cores: float) -> tuple[float, float]:
    """What each of two gets of the cores: one that wants less than half gets that, the other the rest."""
    if mine + theirs <= cores:
        return mine, theirs
    half = cores / 2
    if mine <= half:
        return mine, cores - mine
    if theirs <= half:
        return cores - theirs, theirs
    return half, half


def shares_of(buckets: Sequence[int]) -> tuple[float, ...]:
    """The buckets' shares of the gradient."""
    return tuple(size / sum(buckets) for size in buckets)


def bucket_readiness(ready: Sequence[tuple[float, int]], buckets: Sequence[int]) -> tuple[float, ...]:
    """When each bucket is complete: ``ready`` are (share of the step, bytes) of the parameters, in the order of readiness."""
    out: list[float] = []
    total, i = 0, 0
    filled = 0
    for size in buckets:
        total += size
        moment = out[-1] if out else 0.0
        while i < len(ready) and filled < total:
            moment = ready[i][0]
            filled += ready[i][1]
            i += 1
        out.append(moment)
    return tuple(out)


def predict(probe: Probe, config: RunConfig, model: nn.Module, measured: Measurements) -> Prediction:
    """The step time that the model predicts for a run, and how far it is from the measured one."""
    steps = len(measured.seconds)
    tallies = {kind: tally for kind, tally in measured.steady.collectives.items() if tally.count}
    work = work_of(probe, config, model, measured, tallies)
    predicted_step = step_seconds(work)
    found = statistics.median(measured.seconds)
    terms = Terms(
        compute_ms=1000 * statistics.median(measured.compute.seconds),
        compute_cpu_ms=1000 * work.compute,
        codec_cpu_ms=1000 * work.codec,
        exchange_ms=1000 * work.exchange,
        moving_cpu_ms=1000 * work.moving,
        cores_per_worker=work.cores,
        threads=work.threads,
        ready=list(work.ready),
        shares=list(work.shares),
        collectives={kind: _describe(probe, kind, tally, steps, work.shares) for kind, tally in tallies.items()},
    )
    return Prediction(1000 * predicted_step, predicted_step / found - 1, terms)


def _describe(probe: Probe, kind: str, tally: Tally, steps: int, shares: Sequence[float]) -> CollectiveTerms:
    timing = probe.timings[kind]
    return CollectiveTerms(
        per_step=tally.count / steps,
        bytes_per_step=tally.bytes / steps,
        ms_per_step=1000 * exchange_seconds(probe, kind, tally.count / steps, tally.bytes / tally.count, shares),
        hop_us=1e6 * timing.seconds[0] / max(1, hops(kind, probe.world)),
        probed_bytes=list(timing.sizes),
        probed_ms=[1000 * seconds for seconds in timing.seconds],
        cpu_ns_per_byte=1e9 * timing.cpu,
    )


def work_of(
    probe: Probe, config: RunConfig, model: nn.Module, measured: Measurements, tallies: dict[str, Tally]
) -> Work:
    """What a measured run does in a step."""
    steps = len(measured.seconds)
    shares = shares_of(measured.buckets)
    exchange = sum(
        exchange_seconds(probe, kind, t.count / steps, t.bytes / t.count, shares) for kind, t in tallies.items()
    )
    moving = sum(t.bytes / steps * probe.timings[kind].cpu for kind, t in tallies.items())
    compute, buckets = measured.compute, measured.buckets
    copied = probe.copying * sum(buckets)
    codec = measured.steady.codec_cpu
    if codec is None:  # torch's own hooks: what the process spent beyond computing and moving
        plain = measured.steady.codec is not None
        codec = 0.0 if plain else max(0.0, steps * (measured.cpu - compute.cpu - moving - copied))
    sizes = {name: p.numel() * p.element_size() for name, p in model.named_parameters()}
    ready = sorted((share, sizes[name]) for name, share in compute.ready.items())
    cores = probe.cores / config.workers
    wall, threads = statistics.median(compute.seconds), min(float(config.threads), cores)
    # if others use the machine too, a worker gets less than its share, to the degree that it did while computing alone
    got = min(1.0, max(0.05, compute.cpu / wall / threads))
    return Work(
        compute=wall * threads * got,
        threads=config.threads,
        ready=bucket_readiness(ready, buckets),
        shares=shares,
        codec=codec / steps + copied,
        exchange=exchange,
        moving=moving,
        cores=cores * got,
    )
