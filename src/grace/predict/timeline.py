"""The timeline of a step: what it computes, played against what its buckets encode, move and decode.

The model's thread computes, and each bucket of gradients, once it is ready, goes through the exchange. With one lane that
happens one bucket after the other; with two, one thread encodes and decodes while the other moves bytes. All draw on the
worker's share of the cores, which a fair scheduler divides: who needs less than an equal part gets all it needs, the others
divide the rest. The optimizer waits for all of them.

With cores to spare, and d_j for what a bucket takes that is ready at r_j, one lane ends at ``F_j = max(F_(j-1), r_j) + d_j``,
and the step at ``max(r_B, F_B) + (C - r_B)``. Where cores are shared there is no closed form: events are played.

How often messages follow each other, and what passes a worker's link:

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

N: bytes of the buffer. W: workers; along an axis, those on a line of it.

Sums of floats are written out: the builtin rounds them otherwise from Python 3.12 on, and ranks decide by these numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from grace.collectives import ring_bytes, split_kind
from grace.errors import out_of_range

Phase: TypeAlias = tuple[float, float]
"""(processor seconds, seconds undisturbed) of what a lane does without a break."""

_TINY = 1e-12
_FIRST, _LAST = 0.4, 0.9  # of a step: where its backward pass usually begins, and where its last gradient is ready


def hops(kind: str, world: int) -> int:
    """Number of consecutive messages in a collective of this kind, as :func:`grace.collectives.kind_of` says
    it, among ``world`` workers.
    """
    if world == 1:
        return 0
    return {
        "AllReduce": 2 * (world - 1), "ReduceScatter": 2 * (world - 1), "AllGather": world - 1, "AllToAll": world - 1,
        "Broadcast": (world - 1).bit_length(), "Permute": 1,
    }[split_kind(kind)[0]]  # fmt: skip


def wire_bytes(kind: str, size: float, world: int) -> float:
    """Bytes that pass one worker's link one after the other, for a buffer of ``size`` bytes."""
    if world == 1:
        return 0.0
    name = split_kind(kind)[0]
    if name in ("AllReduce", "ReduceScatter"):
        return ring_bytes(size, world)
    times = {
        "AllGather": float(world - 1), "AllToAll": (world - 1) / world, "Broadcast": float((world - 1).bit_length()),
        "Permute": 1.0,
    }  # fmt: skip
    return size * times[name]


def play(
    compute: float,
    threads: float,
    cores: float,
    ready: Sequence[float],
    jobs: Sequence[Sequence[Phase]],
    lanes: int = 1,
    *,
    older_first: bool = True,
) -> float:
    """Seconds of a step.

    Args:
        compute: processor seconds of forward, backward and optimizer.
        threads: that compute, > 0.
        cores: of one worker, > 0.
        ready: when each bucket is ready, as shares of ``compute``, rising.
        jobs: of each bucket, its phases: codec, move, codec, ..., codec.
        lanes: 1, or 2: one encodes and decodes, what can then travel first; one moves, in an order that depends on nothing
            that is measured: by bucket + round.
        older_first: with two lanes, whether of two such moves that of the older bucket goes first.

    Raises:
        ConfigurationError: another number of lanes.
    """
    if lanes not in (1, 2):
        raise out_of_range("play", "lanes", lanes, "1 or 2")
    last = ready[-1] * compute if ready else compute
    moments = [at * compute for at in ready]
    if lanes == 1:
        end = _play_one(last, threads, cores, moments, jobs)
    else:
        end = _play_two(last, threads, cores, moments, jobs, older_first)
    return end + (compute - last) / min(float(threads), cores)


def _play_one(
    last: float, threads: float, cores: float, moments: Sequence[float], jobs: Sequence[Sequence[Phase]]
) -> float:
    """The time when the last gradient is there, and all exchanges have ended."""
    queue = [(at, cpu, seconds) for at, job in zip(moments, jobs, strict=True) for cpu, seconds in job if seconds > 0]
    now = done = 0.0
    at = 0
    left = queue[0][2] if queue else 0.0  # undisturbed seconds of the first phase
    while done < last - _TINY or at < len(queue):
        computing = done < last - _TINY
        moving = at < len(queue) and done >= queue[at][0] - _TINY
        wants = queue[at][1] / queue[at][2] if moving else 0.0  # cores, at full speed
        share, theirs = share_cores((float(threads) if computing else 0.0, wants), cores)
        speed = theirs / wants if wants > 0 else 1.0
        span = left / speed if moving else (min(queue[at][0], last) if at < len(queue) else last) - done
        if not moving:
            span /= share
        elif computing:
            span = min(span, (last - done) / share)
        now += span
        done = min(done + share * span, last)
        if moving:
            left -= speed * span
            if left <= _TINY:
                at += 1
                left = queue[at][2] if at < len(queue) else 0.0
    return now


def _play_two(
    last: float, threads: float, cores: float, moments: Sequence[float], jobs: Sequence[Sequence[Phase]], older: bool
) -> float:
    """As :func:`_play_one`, with a lane for codecs and one for moves."""
    order = sorted(
        ((j, k) for j, job in enumerate(jobs) for k in range(1, len(job), 2)),
        key=lambda move: (move[0] + move[1] // 2, -move[1] if older else move[1]),
    )
    phase = [0] * len(jobs)  # the next one of each bucket
    now = done = 0.0
    codec: list[float] | None = None  # bucket, undisturbed seconds left
    net: list[float] | None = None
    sent = 0
    while done < last - _TINY or any(at < len(job) for at, job in zip(phase, jobs, strict=True)):
        if codec is None:
            busy = -1 if net is None else int(net[0])
            can = [
                j for j, job in enumerate(jobs)
                if phase[j] < len(job) and phase[j] % 2 == 0 and done >= moments[j] - _TINY and j != busy
            ]  # fmt: skip
            if can:
                j = min(can, key=lambda j: (phase[j] == len(jobs[j]) - 1, j))
                codec = [j, jobs[j][phase[j]][1]]
        if net is None and sent < len(order) and phase[order[sent][0]] == order[sent][1]:
            net = [order[sent][0], jobs[order[sent][0]][order[sent][1]][1]]
            sent += 1
        computing = done < last - _TINY
        wants = [float(threads) if computing else 0.0]
        for lane in (codec, net):
            cpu, seconds = jobs[int(lane[0])][phase[int(lane[0])]] if lane else (0.0, 0.0)
            wants.append(cpu / seconds if seconds > 0 else 0.0)
        gets = share_cores(wants, cores)
        spans = []
        if computing:
            until = min([at for at in moments if at > done + _TINY] + [last])
            spans.append((until - done) / gets[0])
        speeds = [gets[i] / wants[i] if wants[i] > 0 else 1.0 for i in (1, 2)]
        for lane, speed in zip((codec, net), speeds, strict=True):
            if lane:
                spans.append(lane[1] / speed)
        span = min(spans)
        now += span
        done = min(done + gets[0] * span, last)
        ended = []
        for lane, speed in zip((codec, net), speeds, strict=True):
            if lane:
                lane[1] -= speed * span
            ended.append(lane is not None and lane[1] <= _TINY)
        if codec is not None and ended[0]:
            phase[int(codec[0])] += 1
            codec = None
        if net is not None and ended[1]:
            phase[int(net[0])] += 1
            net = None
    return now


def share_cores(wants: Sequence[float], cores: float) -> list[float]:
    """Divides the cores: who wants less than an equal share gets that, the others divide the rest."""
    gets, left = [0.0] * len(wants), cores
    order = sorted(range(len(wants)), key=lambda i: wants[i])
    for place, i in enumerate(order):
        gets[i] = min(wants[i], left / (len(order) - place))
        left -= gets[i]
    return gets


def shares_of(buckets: Sequence[int]) -> tuple[float, ...]:
    """The buckets' shares of the gradient, from their bytes or numbers."""
    return tuple(size / sum(buckets) for size in buckets)


def bucket_readiness(ready: Sequence[tuple[float, int]], buckets: Sequence[int]) -> tuple[float, ...]:
    """The time when each bucket is complete: ``ready`` are (share of the step, bytes) of the parameters, in the order of
    readiness.
    """
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


def usual_readiness(numbers: Sequence[int]) -> tuple[float, ...]:
    """The times when buckets are ready if the step was not measured: as if every number took equally long."""
    total = sum(numbers)
    return tuple(_FIRST + (_LAST - _FIRST) * sum(numbers[: k + 1]) / total for k in range(len(numbers)))
