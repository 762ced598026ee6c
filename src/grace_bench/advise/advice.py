"""Advice: methods in the order of their predicted steps, with reasons, as a document: ``grace.advice``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import torch

import grace
from grace.auto.classes import factor_of, over_scatter_reduce
from grace.contract.needs import Needs
from grace.contract.peer import Peer
from grace.predict.break_even import break_even
from grace.predict.costs import Cost, Step
from grace.predict.links import MOST, Link
from grace_bench.runs.algorithms import find_algorithm
from grace_bench.survey.evidence import Evidence, evidence_for

BASELINES = {"none": "fp32", "bf16": "bf16"}  # methods, and what they are called
MARGIN = 0.02  # a method must be faster by this much to pay
CLOSE = 0.1  # a prediction errs by this much in the median: docs/concepts/choosing.md
_NAMED = 4  # of the methods that are listed in a sentence
_LIKE = torch.empty(1000, 1000, device="meta")  # what says how many bytes a method moves


class OptimizerNeeds(msgspec.Struct, frozen=True):
    """A method's requirements for the optimizer: in few words, empty where there are none; and why."""

    optimizer: str
    why: str


class AdviceRow(msgspec.Struct, frozen=True):
    """A method on a link, with so many workers.

    Attributes:
        rank: 1 is the fastest. method: as a string. pays: whether it beats the better of fp32 and bf16 by 2 %.
        step_ms: predicted. over_fp32, over_bf16: how many times as fast.
        sent_bytes: of one worker and step. codec_ms: processor time of encoding, decoding and machinery.
        codec_adds: the same in ``y.add_(x)`` of the whole gradient.
        break_even_bits_per_second: the link under which it beats the better of fp32 and bf16; null: no link; 400e9: any.
        quality: what the survey's runs say of exactly this method; null: nobody has measured it. complete: false where an
            exchange took so long that it was not measured whole; the rest is taken to cost as much for each number.
        reason: one sentence.
        steps: times bf16's steps that it takes to bf16's quality at most, by the survey's runs; null: not known.
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
    needs: OptimizerNeeds
    quality: Evidence | None
    complete: bool
    reason: str
    steps: float | None = None

    @property
    def keeps(self) -> bool:
        """True if it has been measured not to learn less."""
        return self.quality is not None and self.quality.verdict == "keeps"

    @property
    def learns_less(self) -> bool:
        """True if it has been measured to learn less."""
        return self.quality is not None and self.quality.verdict == "less"


class AdviceTable(msgspec.Struct, frozen=True):
    """All methods on one link with so many workers.

    Attributes:
        best: the fastest that pays and is measured not to learn less; null: there is none. close: others of which both is
            true, and that take at most 10 % longer: no prediction tells them apart.
        fastest: the fastest that pays, whatever it learns; null: none pays here.
        verdict: this in words.
    """

    link: str
    workers: int
    best: str | None
    close: list[str]
    fastest: str | None
    verdict: str
    rows: list[AdviceRow]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``grace advise --json``.

    Attributes:
        model: what was asked about. parameters, buckets: numbers in it, and in each bucket.
        step_ms: a step without communication. measured: whether it was measured here, or given.
        cores: of each worker. ready: when each bucket is ready, as shares of the step.
        add_ns: what ``y.add_(x)`` takes for a number, to which all processor times are tied.
        busy: whether the machine had other work when this was measured. load: processes that wanted to run; null: unknown.
        device: what codecs ran on: "cpu", or the name of a GPU. note: of a GPU, what is measured, extrapolated and assumed.
    """

    schema: Literal["grace.advice"] = "grace.advice"
    version: Literal[2] = 2
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
    tables: list[AdviceTable]
    device: str = "cpu"
    note: str = ""


def rank(step: Step, costs: Mapping[str, Cost], link: Link, world: int) -> AdviceTable:
    """The methods on this link with so many workers, the fastest first.

    Args:
        step: without communication.
        costs: of each method; ``none`` and ``bf16`` among them.
        link: the network.
        world: workers.
    """
    seconds = {name: cost.seconds(step, step.over(link), world) for name, cost in costs.items()}
    fp32, bf16 = seconds["none"], seconds["bf16"]
    order = sorted(seconds, key=lambda name: seconds[name])
    dense = functools.cache(against_baselines(step, costs, world))  # for all methods over the same links
    rows = [
        _row(place, name, seconds[name], (fp32, bf16), step, costs, link, world, dense)
        for place, name in enumerate(order, start=1)
    ]
    paying = [row for row in rows if row.pays]
    keeping = [row for row in paying if row.keeps]
    close = [row for row in keeping[1:] if row.step_ms <= (1 + CLOSE) * keeping[0].step_ms]
    best, fastest = (some[0].method if some else None for some in (keeping, paying))
    verdict = _verdict(paying, keeping[:1], close, (fp32, bf16), step)
    return AdviceTable(str(link), world, best, [row.method for row in close], fastest, verdict, rows)


def against_baselines(step: Step, costs: Mapping[str, Cost], world: int) -> Callable[[Link], float]:
    """Seconds of the better of fp32 and bf16 over a link."""
    return lambda link: min(costs[name].seconds(step, step.over(link), world) for name in BASELINES)


def _row(
    place: int, name: str, seconds: float, dense: tuple[float, float], step: Step, costs: Mapping[str, Cost], link: Link,
    world: int, there: Callable[[Link], float],
) -> AdviceRow:  # fmt: skip
    cost, replay = costs[name], costs[name].at(world)
    pays = name not in BASELINES and seconds < (1 - MARGIN) * min(dense)
    speed = None
    if name not in BASELINES:
        speed = break_even(lambda other: cost.seconds(step, step.over(other), world), there, link.latency)
    needs, quality, steps = Needs(), None, None
    if find_algorithm(name) is None:
        needs, quality, steps = grace.method(name).needs, evidence_for(name), factor_of(name)
    codec = cost.codec_seconds(step, world)
    dense_sent = min(costs[baseline].at(world).sent for baseline in BASELINES)
    row = AdviceRow(
        place, name, pays, 1000 * seconds, dense[0] / seconds, dense[1] / seconds, replay.sent, 1000 * codec,
        sum(replay.codec), None if speed is None else min(speed, MOST), OptimizerNeeds(str(needs), needs.why), quality,
        replay.whole, "", steps,
    )  # fmt: skip
    return msgspec.structs.replace(row, reason=_reason(row, dense_sent, step))


def _reason(row: AdviceRow, dense_sent: float, step: Step) -> str:
    if row.method in BASELINES:
        return f"{BASELINES[row.method]}: what the others are compared with"
    if row.pays:
        parts = [
            f"sends {dense_sent / row.sent_bytes:.3g} times fewer bytes than bf16"
            if row.sent_bytes
            else "sends nothing"
        ]
    elif row.sent_bytes >= 0.95 * dense_sent:
        more = row.sent_bytes / dense_sent
        parts = [f"sends {f'{more:.2g} times as' if more >= 1.05 else 'as'} many bytes as bf16 with this many workers"]
    elif row.codec_ms > 100 * step.seconds:
        parts = [f"its codec takes {row.codec_adds:.0f} passes over the gradient, {row.codec_ms:.0f} ms"]
    else:
        parts = ["the link is fast enough: there is little to save"]
    if row.needs.optimizer:
        parts.append(f"needs {row.needs.optimizer}")
    if not row.complete:
        parts.append("too slow to be measured completely")
    return "; ".join(parts)


def _verdict(
    paying: Sequence[AdviceRow],
    best: Sequence[AdviceRow],
    close: Sequence[AdviceRow],
    dense: tuple[float, float],
    step: Step,
) -> str:
    """``best``: the fastest that is measured not to learn less, if there is one."""
    fallback = 1000 * min(dense)
    name = "fp32" if dense[0] <= dense[1] else "bf16"
    limit = f"a step without communication takes {1000 * step.seconds:.3g} ms"
    if not paying:
        return f"none pays here: use {name}, {fallback:.4g} ms ({limit})"
    parts = [f"use {name}, {fallback:.4g} ms ({limit}): nothing that pays is measured not to learn less"]
    for row in best:
        gain = fallback / row.step_ms
        parts = [f"{row.method}: {row.step_ms:.4g} ms, {gain:.2f} times as fast as {name}, {fallback:.4g} ms ({limit})"]
        if row.quality is not None:
            parts.append(f"not seen to learn less on {row.quality.tasks} tasks, in {row.quality.runs} runs")
    if close:
        parts.append(f"not told apart from it (at most {CLOSE:.0%} longer, the error of a prediction): {_list(close)}")
    faster = [row for row in paying if not best or row.rank < best[0].rank]
    kinds = {
        "faster, but measured to learn less": [row for row in faster if row.learns_less],
        "faster, but not measured well enough": [row for row in faster if not row.learns_less and not row.keeps],
    }
    return "; ".join([*parts, *(f"{what}: {_list(rows)}" for what, rows in kinds.items() if rows)])


def _list(rows: Sequence[AdviceRow]) -> str:
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return ", ".join(f"{row.method} ({row.step_ms:.4g} ms)" for row in rows[:_NAMED]) + more


def candidates(chosen: Sequence[str] | None, world: int, *, exactly: bool = False) -> list[str]:
    """fp32 and bf16, and these methods or every registered one, each as :func:`compose` makes it; what is the same method by
    two names, once. ``exactly``: methods as they are written.
    """
    wanted = grace.methods() if chosen is None else chosen
    loops = {name for name in wanted if find_algorithm(name) is not None}
    names = [*BASELINES, *(name if exactly or name in loops else compose(name, world) for name in wanted)]
    by_method: dict[grace.Method[Any] | str, str] = {}
    for name in names:
        by_method.setdefault(name if name in loops else grace.method(name), name)
    return list(by_method.values())


def compose(spec: str, world: int) -> str:
    """A method as it is written; but over scatter-reduce where its gather moves as many bytes as bf16's sum or more. A
    communicator that is written stays.
    """

    def sent(spec: str) -> int | None:
        traffic = grace.method(spec).traffic(_LIKE, Peer(0, world))
        return None if traffic is None else traffic.sent

    other = None if spec in BASELINES else over_scatter_reduce(spec)
    dense, plain = sent("bf16"), sent(spec)
    return spec if other is None or plain is None or dense is None or plain < dense else other
