"""Measurements that ``auto`` makes before it plans: codecs, the link, and the model's own step.

- **Codecs**, in ``attach``, on all ranks at once, so that they share caches and memory as in training: each candidate's
  exchange of 2^14 and 2^20 numbers, replayed. What takes more than 50 ns a number is left out, and what there is no time for.
- **The link**, next, while all ranks are there and idle: the kinds of collectives that candidates need, up to the largest
  buffer that they need, small sizes of all kinds first. A size that the last one's slope puts above 100 ms is left out.
- **On a GPU** both are measured there, by marks on a stream that is held back while the host submits: seconds of the device,
  and as a number of its own what the host takes to issue a bucket. Codecs are measured at 2^14 and 2^23 numbers, the host also
  with a bucket of eight tensors; exchanges that compile kernels count for nothing, not even in what it may take.
- **The model**, in some of the first steps: see :mod:`grace.auto.model`.

All ranks decide alike. What a rank measures is a whole number of nanoseconds; an all-gather gives everyone everyone's, and
all that follows is a function of that, in whole numbers and IEEE doubles with ``+ - * /`` and comparisons. Times are the
maximum over ranks, as a synchronous step waits for the slowest; which rank that was is kept.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grace.compute import resources
from grace.errors import ConfigurationError, TransportError
from grace.predict.costs import Carrier, Probed
from grace.predict.links import UNSHAPED
from grace.predict.probe import SIZES, Meter, Probe, Timings
from grace.predict.rates import TENSORS, Rate, Rater, Sample
from grace.predict.timeline import Phase
from grace.predict.ways import TO_ALL, Way
from grace.registry import method as make_method
from grace.registry.policy import Policy
from grace.transports.base import Transport, describe

LINK_NS, CODEC_NS = 2_000_000_000, 1_500_000_000  # what the two may take
MOST_SECONDS = 0.1  # of one collective of a size
_SURE = SIZES[:2]  # sizes that each kind is measured at: through them goes a line
_OFTEN = 1 << 17  # bytes up to which a size is measured five times instead of three
SLOW_NS = 50  # a number: a codec that takes longer is left out
_SMALL_TIMES = 4  # so many times that, for small tensors, whose calls count more
BASELINES = ("none", "bf16")  # what is measured in any case
STRAGGLES = 1.5  # times the median of the ranks
_ENOUGH = 1 << 17  # bytes to which a kind is known well enough, where candidates need more
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Told:
    """Measurements of one quantity by all ranks, in nanoseconds, by rank."""

    what: str
    ns: tuple[int, ...]

    @property
    def slowest(self) -> int:
        """The rank that took longest."""
        return self.ns.index(max(self.ns))

    @property
    def straggles(self) -> float:
        """Ratio of the time of the slowest rank to the median of the ranks."""
        usual = sorted(self.ns)[(len(self.ns) - 1) // 2]
        return max(self.ns) / max(1, usual)

    @property
    def usual(self) -> str:
        """Name of what the slowest is compared with."""
        return f"rank {1 - self.slowest}" if len(self.ns) == 2 else "the median of the ranks"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measurements made in ``attach``; the same on all ranks.

    Attributes:
        world: workers. transport: between them, as it describes itself.
        cores: of one worker, the least of all.
        timings: points of each kind of collective.
        rates: of each candidate that may be used. left_out: the others, and why.
        codecs: what each rank has measured of each candidate at 2^20 numbers. links: of each kind at its largest size.
        spent: nanoseconds, by stage.
        unsure: kinds that could not be measured up to 128 KiB, though candidates need more: the line beyond is a guess.
        way: of exchanges. memory: bytes that are free for one worker, the least of all; 0: nobody asked.
        device: kind of a worker's GPU; empty: a processor. compiling: nanoseconds that this rank waited for compilers.
    """

    world: int
    transport: str
    cores: float
    timings: Timings
    rates: Mapping[str, Rate] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    codecs: tuple[Told, ...] = ()
    links: tuple[Told, ...] = ()
    spent: Mapping[str, int] = field(default_factory=dict)
    unsure: tuple[str, ...] = ()
    way: Way = TO_ALL
    memory: int = 0
    device: str = ""
    compiling: int = 0

    @property
    def fingerprint(self) -> str:
        """The properties of a job that must be equal where its numbers are to be used again."""
        return f"{self.world} workers over {self.transport}, {self.device or f'{self.cores:g} cores'} each"

    def name_unsure(self) -> str:
        """Notes on the kinds that are ``unsure``, in words."""
        return ", ".join(f"{kind} to {self.timings.kinds[kind].sizes[-1]:,} bytes" for kind in self.unsure)

    @property
    def network(self) -> Carrier:
        """The network that was measured."""
        return Probed(self.timings)

    def phases(self, method: str, shapes: Sequence[Sequence[int]], beside: int = 0) -> list[Phase]:
        """The phases of a bucket of tensors of these shapes under a candidate: (processor seconds, seconds undisturbed) of
        codec, move, codec, ... codec. ``beside``: bytes of others that travel in its first collective.
        """
        rate = self.rates[method]
        numbers = [math.prod(shape) for shape in shapes]
        scale = rate.scale_to(make_method(method), shapes, self.way)
        return rate.phases(numbers, self.network, bytes_scale=scale, beside=beside)

    def bucket(self, shapes: Mapping[str, Sequence[Sequence[int]]]) -> list[Phase]:
        """The same of a bucket whose tensors have several methods: their shapes by candidate; of others, fp32 is assumed."""
        plain = shapes.get("none", ()) if self.way.joins and len(shapes) > 1 else ()
        beside = sum(4 * math.prod(shape) for shape in plain)
        timeline: list[Phase] = []
        for method, of in shapes.items():
            if of is not plain:
                timeline += self.phases(method if method in self.rates else "none", of, beside)
                beside = 0
        return timeline

    def issue(self, shapes: Mapping[str, Sequence[Sequence[int]]]) -> float:
        """Seconds of a GPU's host for issuing such a bucket."""
        seconds = 0.0
        for method, of in shapes.items():
            if method != "none" or not self.way.joins or len(shapes) == 1:
                seconds += self.rates[method if method in self.rates else "none"].issue(len(of), self.network)
        return seconds


def calibrate(
    transport: Transport,
    candidates: Sequence[str],
    largest: int,
    *,
    way: Way = TO_ALL,
    beside: Transport | None = None,
    clock: Callable[[], int] = time.monotonic_ns,
    meter: Meter | None = None,
    device: str = "",
    memory: int = 0,
) -> Calibration:
    """Measures codecs and the link. All ranks call it, with the same arguments.

    Args:
        transport: between them.
        candidates: methods; where time runs out, the slowest are left out.
        largest: numbers in the largest bucket.
        way: of exchanges.
        beside: to workers that measure other lines at the same time: see :class:`grace.predict.probe.Probe`.
        clock: nanoseconds, for what it may take.
        meter: of what is measured; None: on processors.
        device: kind of a worker's GPU; empty: a processor.
        memory: bytes that are free on a GPU; a processor is asked.

    Raises:
        TransportError: the link failed meanwhile; on all ranks.
    """
    if transport.world == 1:
        return Calibration(1, describe(transport), float(resources.cores()), Timings(UNSHAPED, 1, resources.cores()))
    try:
        asking, cores = Probe(transport, 1, beside=beside, meter=meter), 1.0
        if not device:
            cores, memory = _share_machine(asking)
        rater = Rater(way=way, meter=meter)
        rates, left_out, told, codec_ns = _measure_codecs(asking, rater, candidates, clock)
        probe = Probe(
            transport, max(1, int(cores * transport.world)), most_seconds=MOST_SECONDS,
            repeats=lambda size: 5 if size <= _OFTEN else 3, beside=beside, meter=meter,
        )  # fmt: skip
        needed = _sizes_needed(rates.values(), largest)
        links = _measure_link(probe, needed)
    except TransportError as error:
        raise TransportError(f"while auto measured the link and the codecs: {error}") from error
    return Calibration(
        transport.world, describe(transport), cores, probe.timings, rates, left_out, tuple(told), tuple(links),
        {"codecs": codec_ns, "link": probe.spent}, unsure_of(probe.timings, needed), way, memory, device, rater.compiling,
    )  # fmt: skip


def unsure_of(timings: Timings, needed: Mapping[str, int]) -> tuple[str, ...]:
    """The kinds that are known to fewer bytes than 128 KiB, of those of which that many or more are ``needed``."""
    return tuple(kind for kind, most in needed.items() if timings.kinds[kind].sizes[-1] < min(most, _ENOUGH))


def stragglers(told: Sequence[Told]) -> list[str]:
    """Name the ranks that take more than 1.5 times as long as the median, in words; compression cannot mend that."""
    slowest: dict[int, Told] = {}
    for measured in told:
        if measured.straggles > max(
            STRAGGLES, slowest[measured.slowest].straggles if measured.slowest in slowest else 0.0
        ):
            slowest[measured.slowest] = measured
    return [
        f"rank {rank} takes {measured.straggles:.1f} times as long as {measured.usual} ({measured.what}): all wait for it"
        for rank, measured in sorted(slowest.items())
    ]


# ---- codecs ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Agreed:
    """Measurements of one exchange that all ranks know. sample: the slowest of each part; None, and ``why`` not. ns: of
    each rank. spent: on codecs so far, by the slowest.
    """

    sample: Sample | None
    why: str
    ns: tuple[int, ...]
    spent: int


def _measure_codecs(
    probe: Probe, rater: Rater, candidates: Sequence[str], clock: Callable[[], int]
) -> tuple[dict[str, Rate], dict[str, str], list[Told], int]:
    """Rates, what is left out and why, what each rank measured, and nanoseconds that it took."""
    world, start = probe.timings.world, clock()
    left_out: dict[str, str] = {}
    axes: dict[str, dict[str, int]] = {}
    small: dict[str, Agreed] = {}
    large: dict[str, Agreed] = {}
    buckets: dict[str, Agreed] = {}
    spent = 0

    def measure(names: Iterable[str], numbers: int, times: int, into: dict[str, Agreed], tensors: int = 1) -> None:
        nonlocal spent
        for name in names:
            always = name in BASELINES
            if spent > CODEC_NS and not always:
                left_out[name] = f"not measured: {CODEC_NS / 1e9:g} s had passed"
                continue
            limit = math.inf if always else times * SLOW_NS * numbers
            agreed = agree_on(probe, rater, name, numbers, limit, lambda: clock() - start - rater.compiling, tensors)
            spent = agreed.spent
            if agreed.sample is None:
                left_out[name] = agreed.why
            else:
                into[name] = agreed

    for name in candidates:
        try:
            axes[name] = _find_axes(name, probe.timings)
        except ConfigurationError as error:
            left_out[name] = str(error.args[0])
    measure(axes, rater.numbers[0], _SMALL_TIMES, small)
    # then the quickest first: what takes long must not keep the others from being measured
    measure(sorted(small, key=lambda name: (name not in BASELINES, max(small[name].ns))), rater.numbers[1], 1, large)
    if rater.meter.ahead:
        measure(large, rater.numbers[0], _SMALL_TIMES, buckets, TENSORS)
    rates: dict[str, Rate] = {}
    told: list[Told] = []
    for name in candidates:
        if name in large and (name in buckets or not rater.meter.ahead):
            samples = [rate.sample for rate in (small[name], large[name]) if rate.sample is not None]
            bucket = buckets[name].sample if name in buckets else None
            rates[name] = Rate.through(world, samples, axes[name], bucket)
            told.append(Told(name, large[name].ns))
    return rates, left_out, told, spent


def agree_on(
    probe: Probe, rater: Rater, name: str, numbers: int, limit: float, elapsed: Callable[[], int], tensors: int = 1
) -> Agreed:
    """Measures an exchange of so many numbers under method ``name``, which may take ``limit`` nanoseconds. All ranks call it.
    ``elapsed``: nanoseconds on codecs so far, on this rank. ``tensors``: that they are divided among.
    """
    # where a small exchange is slow, the first may only have loaded what it needs
    patience = math.inf if numbers == rater.numbers[0] else limit / 1e9
    more = {"tensors": tensors} if tensors > 1 else {}
    try:
        sample, failed = rater.run(name, probe.timings.world, numbers, patience, **more), 0
    except Exception:  # a kernel that is missing on one machine: all ranks must hear of it, or they wait for ever
        sample, failed = Sample(numbers, (), ()), 1
    heads = probe.all_gather_numbers([failed, len(sample.codec), len(sample.moved), elapsed()])
    spent = max(row[3] for row in heads)
    if broken := [rank for rank, row in enumerate(heads) if row[0]]:
        return Agreed(None, f"rank {broken[0]} cannot run it", (), spent)
    if any(row[1:3] != heads[0][1:3] for row in heads):
        return Agreed(None, "its collectives differ between ranks", (), spent)
    rows = probe.all_gather_numbers([*sample.codec, *(size for _, size in sample.moved), sample.host])
    parts = len(sample.codec)
    slowest = [max(column) for column in zip(*rows, strict=True)]
    ns = tuple(sum(row[:parts]) for row in rows)
    if max(ns) > limit:
        return Agreed(None, f"its codec takes {max(ns) / numbers:.0f} ns a number, more than {SLOW_NS}", ns, spent)
    moved = tuple((kind, size) for (kind, _), size in zip(sample.moved, slowest[parts:-1], strict=True))
    out = Sample(sample.numbers, tuple(slowest[:parts]), moved, slowest[-1], sample.tensors)
    return Agreed(out, "", ns, spent)


def _find_axes(name: str, timings: Timings) -> dict[str, int]:
    """The axes along which a method exchanges.

    Raises:
        ConfigurationError: these workers do not lie so.
    """
    wanted, has = dict(Policy([("*", name)]).axes(timings.world)), dict(timings.axes)
    if wanted and wanted != has:
        raise ConfigurationError(f"needs {wanted}, and these workers lie on {has or 'no grid'}")
    return wanted


# ---- the link -------------------------------------------------------------------------------------------------------
def _sizes_needed(rates: Iterable[Rate], largest: int) -> dict[str, int]:
    """The largest buffer of each kind, in bytes, that a bucket of so many numbers needs under any of these rates."""
    needed: dict[str, int] = {}
    for rate in rates:
        for kind, head, each in rate.moved:
            needed[kind] = max(needed.get(kind, 0), int(head + each * largest) + 1)
    return needed


def _measure_link(probe: Probe, needed: Mapping[str, int]) -> list[Told]:
    """Sizes rise, and each is measured of all kinds before the next: where time runs out, all kinds have the small ones."""
    told: dict[str, Told] = {}
    for size in SIZES:
        for kind, most in needed.items():
            sure = size in _SURE
            if sure or (probe.spent <= LINK_NS and probe.timings.kinds[kind].sizes[-1] < most):
                ns = learn(probe, kind, [size if sure else min(size, most)])
                told[kind] = Told(kind, ns) if ns else told[kind]
    return list(told.values())


def learn(probe: Probe, kind: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Measures a kind at these sizes; nanoseconds of the last that was not left out, by rank."""
    ns: tuple[int, ...] = ()
    for size in sizes:
        before = probe.spent
        probe.learn(kind, size, ())
        ns = tuple(probe.last) if probe.spent > before else ns
    return ns


# ---- where ranks are ------------------------------------------------------------------------------------------------
def _share_machine(probe: Probe) -> tuple[float, int]:
    """Cores of one worker, and bytes that are free: those of its machine, over the ranks on it; the least of all ranks."""
    rows = probe.all_gather_numbers([find_machine(), resources.cores(), resources.available_memory()])
    machines = [row[0] for row in rows]
    cores = min(row[1] / machines.count(row[0]) for row in rows)
    return cores, min(row[2] // machines.count(row[0]) for row in rows)


def find_machine() -> int:
    """A number of this machine: two that are told apart have two."""
    try:
        text = _BOOT.read_text()
    except OSError:
        text = f"{platform.node()} {os.uname().machine}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
