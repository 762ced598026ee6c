"""Advice: methods in the order of their predicted steps, with reasons, as a document: ``grace.advice``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

import grace
from grace_bench.advise.costs import Cost, Step
from grace_bench.advise.known import Quality, quality_of
from grace_bench.network.break_even import break_even
from grace_bench.network.links import MOST, Link

BASELINES = {"none": "fp32", "bf16": "bf16"}  # methods, and what they are called
# One good composition of each method of the survey; those that would gather many bits use scatter-reduce.
CANDIDATES = (
    "topk", "dgc", "randomk", "threshold", "varsparse", "gspar",
    "qsgd:bits=4,communicator=scatterreduce", "terngrad:communicator=scatterreduce", "natural:communicator=scatterreduce",
    "u8bit:communicator=scatterreduce", "lpc", "inceptionn", "signsgd", "signum", "efsignsgd", "onebit", "strom", "3lc",
    "qsparse", "adaq", "sketchml", "powersgd", "atomo", "gradiveq", "gradzip",
)  # fmt: skip
MARGIN = 0.02  # a method must be faster by this much to pay
CLOSE = 0.1  # a prediction errs by this much in the median: docs/concepts/choosing.md
_NAMED = 4  # of the methods that are close
_LOSS = 0.1  # of quality: beyond it, the reason warns


class Needs(msgspec.Struct, frozen=True):
    """What a method needs of the optimizer: in few words, empty where nothing; and why."""

    optimizer: str
    why: str


class Row(msgspec.Struct, frozen=True):
    """A method on a link, with so many workers.

    Attributes:
        rank: 1 is the fastest. method: as a string. pays: whether it beats the better of fp32 and bf16 by 2 %.
        step_ms: predicted. over_fp32, over_bf16: how many times as fast.
        sent_bytes: of one worker and step. codec_ms: processor time of encoding, decoding and machinery.
        codec_adds: the same in ``y.add_(x)`` of the whole gradient.
        break_even_bits_per_second: the link under which it beats the better of fp32 and bf16; null: no link; 400e9: any.
        quality: what the suite knows of it; null: not measured. complete: false where one exchange took too long to be
            measured whole; the rest is taken to cost as much for each number.
        reason: one sentence.
    """

    rank: int
    method: str
    pays: bool
    step_ms: float
    over_fp32: float
    over_bf16: float
    sent_bytes: float
    codec_ms: float
    codec_adds: float
    break_even_bits_per_second: float | None
    needs: Needs
    quality: Quality | None
    complete: bool
    reason: str

    @property
    def learns_less(self) -> bool:
        """Whether the suite has seen it end worse than fp32 by more than 10 %."""
        return self.quality is not None and self.quality.loss > _LOSS


class Table(msgspec.Struct, frozen=True):
    """All methods on one link with so many workers.

    Attributes:
        best: the fastest that pays; null: none pays here. close: others that pay, and take at most 10 % longer: no prediction
            tells them apart. keeps: the fastest that pays and is not known to learn less; null: none.
        verdict: this in words.
    """

    link: str
    workers: int
    best: str | None
    close: list[str]
    keeps: str | None
    verdict: str
    rows: list[Row]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``grace advise --json``.

    Attributes:
        model: what was asked about. parameters, buckets: numbers in it, and in each bucket.
        step_ms: a step without communication. measured: whether it was measured here, or given.
        cores: of each worker. ready: when each bucket is ready, as shares of the step.
        add_ns: what ``y.add_(x)`` takes for a number, to which all processor times are tied.
        busy: whether the machine had other work when this was measured. load: processes that wanted to run; null: unknown.
    """

    schema: Literal["grace.advice"] = "grace.advice"
    version: Literal[1] = 1
    model: str
    parameters: int
    buckets: list[int]
    step_ms: float
    measured: bool
    cores: float
    ready: list[float]
    add_ns: float
    busy: bool
    load: float | None
    tables: list[Table]


def rank(step: Step, costs: Mapping[str, Cost], link: Link, world: int) -> Table:
    """The methods on this link with so many workers, the fastest first.

    Args:
        step: without communication.
        costs: of each method; ``none`` and ``bf16`` among them.
        link: the network.
        world: workers.
    """
    seconds = {name: cost.seconds(step, link, world) for name, cost in costs.items()}
    fp32, bf16 = seconds["none"], seconds["bf16"]
    order = sorted(seconds, key=lambda name: seconds[name])
    rows = [
        _row(place, name, seconds[name], (fp32, bf16), step, costs, link, world)
        for place, name in enumerate(order, start=1)
    ]
    paying = [row for row in rows if row.pays]
    winner = next(iter(paying), None)
    keeping = next((row for row in paying if not row.learns_less), None)
    close = [
        row.method for row in paying if winner and row is not winner and row.step_ms <= (1 + CLOSE) * winner.step_ms
    ]
    best, keeps = (row.method if row else None for row in (winner, keeping))
    return Table(str(link), world, best, close, keeps, _verdict(winner, close, keeping, (fp32, bf16), step), rows)


def against_baselines(step: Step, costs: Mapping[str, Cost], world: int) -> Callable[[Link], float]:
    """Seconds of the better of fp32 and bf16 over a link."""
    return lambda link: min(costs[name].seconds(step, link, world) for name in BASELINES)


def _row(
    place: int, name: str, seconds: float, dense: tuple[float, float], step: Step, costs: Mapping[str, Cost], link: Link,
    world: int,
) -> Row:  # fmt: skip
    cost, replay = costs[name], costs[name].at(world)
    pays = name not in BASELINES and seconds < (1 - MARGIN) * min(dense)
    speed = None
    if name not in BASELINES:
        there = against_baselines(step, costs, world)
        speed = break_even(lambda other: cost.seconds(step, other, world), there, link.latency)
    needs, quality = grace.method(name).needs, quality_of(name)
    codec = cost.codec_seconds(step, world)
    dense_sent = min(costs[one].at(world).sent for one in BASELINES)
    row = Row(
        place, name, pays, 1000 * seconds, dense[0] / seconds, dense[1] / seconds, replay.sent, 1000 * codec,
        sum(replay.codec), None if speed is None else min(speed, MOST), Needs(str(needs), needs.why), quality,
        replay.whole, "",
    )  # fmt: skip
    return msgspec.structs.replace(row, reason=_reason(row, dense_sent, step))


def _reason(row: Row, dense_sent: float, step: Step) -> str:
    if row.method in BASELINES:
        return f"{BASELINES[row.method]}: what the others are compared with"
    if row.pays:
        parts = [
            f"sends {dense_sent / row.sent_bytes:.3g} times fewer bytes than bf16"
            if row.sent_bytes
            else "sends nothing"
        ]
    elif row.sent_bytes >= dense_sent:
        parts = [f"sends {row.sent_bytes / dense_sent:.2g} times as many bytes as bf16 with this many workers"]
    elif row.codec_ms > 100 * step.seconds:
        parts = [f"its codec takes {row.codec_adds:.0f} passes over the gradient, {row.codec_ms:.0f} ms"]
    else:
        parts = ["the link is fast enough: there is little to save"]
    if row.quality is not None and row.learns_less:
        parts.append(f"learns less: {row.quality.metric} {row.quality.value:g}, fp32 {row.quality.fp32:g}")
    if row.needs.optimizer:
        parts.append(f"needs {row.needs.optimizer}")
    if not row.complete:
        parts.append("too slow here to be measured completely")
    return "; ".join(parts)


def _verdict(
    winner: Row | None, close: Sequence[str], keeping: Row | None, dense: tuple[float, float], step: Step
) -> str:
    best = 1000 * min(dense)
    name = "fp32" if dense[0] <= dense[1] else "bf16"
    limit = f"a step without communication takes {1000 * step.seconds:.3g} ms"
    if winner is None:
        return f"none pays here: use {name}, {best:.4g} ms ({limit})"
    gain = best / winner.step_ms
    parts = [f"{winner.method}: {winner.step_ms:.4g} ms, {gain:.2f} times as fast as {name}, {best:.4g} ms ({limit})"]
    if close:
        more = f" and {len(close) - _NAMED} more" if len(close) > _NAMED else ""
        parts.append(
            f"not told apart from it (at most {CLOSE:.0%} longer, the error of a prediction): "
            f"{', '.join(close[:_NAMED])}{more}"
        )
    if keeping is None:
        parts.append("all that pay are known to learn less")
    elif keeping is not winner:
        parts.append(f"the fastest that is not known to learn less: {keeping.method}, {keeping.step_ms:.4g} ms")
    return "; ".join(parts)


def candidates(chosen: Sequence[str] | None) -> list[str]:
    """fp32 and bf16, and these methods, or one of each kind."""
    return list(dict.fromkeys([*BASELINES, *(chosen or CANDIDATES)]))
