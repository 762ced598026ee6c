"""The timeline of a step: what it computes, played against what its buckets encode, move and decode.

The model's thread computes, and each bucket of gradients, once it is ready, goes through the exchange, one bucket after the
other. All draw on the worker's share of the cores, which a fair scheduler divides: who needs less than an equal part gets all
it needs, the others divide the rest. The optimizer waits for all of them.

On a GPU the device computes, encodes and decodes, and its host is a lane more (:class:`Host`): a bucket's exchange begins when
the host has issued it, and no step is shorter than what the host has to do in it.

With cores to spare, and d_j for what a bucket takes that is ready at r_j and issued at i_j, exchanges end at
``F_j = max(F_(j-1), r_j, i_j) + d_j``, and the step at ``max(r_B, F_B) + (C - r_B)``. Where cores are shared there is no
closed form: events are played.

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
from dataclasses import dataclass
from typing import TypeAlias

from grace.collectives import ring_bytes, split_kind

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


@dataclass(frozen=True, slots=True)
class Host:
    """The lane of a host that submits all that a device does, one thing after the other.

    Attributes:
        own: seconds of a step that it spends on what is no exchange.
        arrives: moments when it comes to each bucket, in seconds from the beginning of the device's step, as if issuing took
            no time; negative where it is ahead. Empty: it never waits for the device, and is ahead as far as it can be.
        issues: seconds that it takes to issue the exchange of each bucket, which cannot begin before.
    """

    own: float = 0.0
    arrives: Sequence[float] = ()
    issues: Sequence[float] = ()

    @property
    def seconds(self) -> float:
        """Seconds of a step: none takes less, however little the device has to do."""
        total = self.own
        for seconds in self.issues:
            total += seconds
        return total

    @property
    def issued(self) -> list[float]:
        """The moments when exchanges may begin, by bucket; empty: whenever there is a gradient."""
        out, spent = [], 0.0
        for arrives, seconds in zip(self.arrives, self.issues if self.arrives else (), strict=True):
            spent += seconds
            out.append(arrives + spent)
        return out


def play(
    compute: float,
    threads: float,
    cores: float,
    ready: Sequence[float],
    jobs: Sequence[Sequence[Phase]],
    host: Host | None = None,
    *,
    urgent: bool = False,
) -> float:
    """Seconds of a step.

    Args:
        compute: processor seconds of forward, backward and optimizer.
        threads: that compute, > 0.
        cores: of one worker, > 0.
        ready: when each bucket is ready, as shares of ``compute``, rising.
        jobs: of each bucket, its phases: codec, move, codec, ..., codec.
        host: of the device that does all this; None: the processor that submits it.
        urgent: whether exchanges get all that they need of the cores, and the model the rest, as on a stream of high priority.
    """
    last = ready[-1] * compute if ready else compute
    moments = [at * compute for at in ready]
    issued = host.issued if host is not None else []
    end = _play(last, threads, cores, moments, jobs, issued or [0.0] * len(moments), urgent)
    end += (compute - last) / min(float(threads), cores)
    return end if host is None else max(end, host.seconds)


def _play(
    last: float, threads: float, cores: float, moments: Sequence[float], jobs: Sequence[Sequence[Phase]],
    issued: Sequence[float], urgent: bool,
) -> float:  # fmt: skip
    """The time when the last gradient is there, and all exchanges have ended."""
    queue = [
        (at, begins, cpu, seconds)
        for at, begins, job in zip(moments, issued, jobs, strict=True)
        for cpu, seconds in job
        if seconds > 0
    ]
    now = done = 0.0
    at = 0
    left = queue[0][3] if queue else 0.0  # undisturbed seconds of the first phase
    while done < last - _TINY or at < len(queue):
        computing = done < last - _TINY
        there = at < len(queue) and done >= queue[at][0] - _TINY
        moving = there and now >= queue[at][1] - _TINY
        wants = queue[at][2] / queue[at][3] if moving else 0.0  # cores, at full speed
        model = float(threads) if computing else 0.0
        if urgent:
            theirs = min(wants, cores)
            share = min(model, cores - theirs)
        else:
            share, theirs = share_cores((model, wants), cores)
        speed = theirs / wants if wants > 0 else 1.0
        spans = []
        if moving:
            spans.append(left / speed)
        elif there:
            spans.append(queue[at][1] - now)
        if share > 0:
            spans.append(((last if there or at == len(queue) else min(queue[at][0], last)) - done) / share)
        span = min(spans)
        now += span
        done = min(done + share * span, last)
        if moving:
            left -= speed * span
            if left <= _TINY:
                at += 1
                left = queue[at][3] if at < len(queue) else 0.0
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
