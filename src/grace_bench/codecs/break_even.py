"""On which links a method pays: exchanges of one tensor, beside dense all-reduces in fp32 and in bf16.

An exchange takes what :class:`grace.predict.costs.Cost` says of a step that only exchanges, as ``grace advise`` would say it:
nothing hides behind a backward pass. A method that moves fewer bytes than a dense all-reduce, but computes longer, is faster
below the speed at which both take equally long. In training some of both is hidden, and a codec shares its cores with the
backward pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grace.collectives import NARROW, Tally
from grace.errors import InputError
from grace.predict.break_even import break_even
from grace.predict.costs import Cost, Step
from grace.predict.links import Link
from grace.predict.rates import moved_by
from grace.predict.replay import Replay
from grace.predict.timeline import wire_bytes
from grace.registry import method
from grace_bench.codecs.bench import SCHEMA, VERSION, Bench, Row, short
from grace_bench.codecs.buffers import Buffers
from grace_bench.codecs.cases import variants
from grace_bench.codecs.clock import ADD, DECODE, ENCODE, FEEDBACK
from grace_bench.codecs.plan import YARDSTICKS, CodecPlan, by_family
from grace_bench.devices import CodecTimes

CAST = "bf16"  # always measured: an all-reduce in bf16 includes the cast


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange of a tensor. codec: seconds of computing. moved: its collectives, by kind. step: on which machine, of how
    many numbers. workers: that exchange.
    """

    codec: float
    moved: Mapping[str, Tally]
    step: Step
    workers: int

    def seconds(self, link: Link) -> float:
        """Seconds over this link."""
        adds = self.codec / (self.step.add * sum(self.step.numbers))
        cost = Cost(lambda world: Replay(world, (adds,), (dict(self.moved),), 0.0))
        return cost.seconds(self.step, self.step.over(link), self.workers)

    @property
    def wire_bytes(self) -> float:
        """Bytes that pass a worker's link one after the other."""
        moved = self.moved.items()
        return sum(t.count * wire_bytes(kind, t.bytes / t.count, self.workers) for kind, t in moved if t.count)


def step_of(numbers: int, threads: int, add: float) -> Step:
    """A step that does nothing but exchange one tensor; ``add``: seconds of ``y.add_(x)`` for a number."""
    return Step(0.0, (0.0,), (numbers,), float(threads), add, copies=0.0)


class BreakEvenBench(Bench):
    """Times the methods of a plan; its document has a list ``worth``, a row for each method, size and number of threads.

    Args:
        plan: what is measured; bf16 is added to it.
        links: on which methods are compared.
        eviction: as for :class:`Bench`.
    """

    def __init__(self, plan: CodecPlan, links: Sequence[Link], eviction: int | None = None):
        super().__init__(replace(plan, methods=by_family([*plan.methods, CAST])), eviction)
        self.links = links
        self._moved: dict[tuple[str, int], dict[str, Tally]] = {}

    def run_job(self, name: str, buffers: Buffers, count: int) -> None:
        before = len(self.lists["rows"])
        super().run_job(name, buffers, count)
        if name != YARDSTICKS and len(self.lists["rows"]) > before and (name, buffers.n) not in self._moved:
            self._moved[name, buffers.n] = moved_by(method(name), buffers.n, buffers.workers)

    def more(self) -> dict[str, Any]:
        groups: dict[tuple[str, int, int], dict[str, Row]] = {}
        for row in self.lists["rows"]:
            groups.setdefault((row["method"], row["size"], row["threads"]), {})[row["operation"]] = row
        adds = {
            (row["size"], row["threads"]): float(row["microseconds"]) / 1e6
            for row in self.lists["yardsticks"]
            if row["operation"] == ADD
        }
        rows = []
        for (name, size, count), operations in groups.items():
            cast, add = groups.get((CAST, size, count), {}), adds.get((size, count))
            codec = codec_seconds(name, operations)
            if (name, size) in self._moved and codec is not None and add is not None:
                step, workers = step_of(size, count, add / size), self.plan.workers
                half = {f"AllReduce{NARROW}": Tally(1, 2 * size)}
                dense = {
                    "fp32": Exchange(0.0, {"AllReduce": Tally(1, 4 * size)}, step, workers),
                    CAST: Exchange(codec_seconds(CAST, cast) or 0.0, half, step, workers),
                }
                row = self._row(Exchange(codec, self._moved[name, size], step, workers), dense)
                rows.append({"method": name, "size": size, "threads": count, **row})
        return {"worth": rows}

    def _row(self, exchange: Exchange, dense: dict[str, Exchange]) -> Row:
        out: Row = {
            "codec_microseconds": short(1e6 * exchange.codec),
            "moved_bytes": round(exchange.wire_bytes),
            "relative_to_fp32": short(exchange.wire_bytes / dense["fp32"].wire_bytes),
        }
        for name, other in dense.items():
            speed = break_even(exchange.seconds, other.seconds)
            out[f"faster_than_{name}_below"] = 0.0 if speed is None else None if speed == math.inf else short(speed)
        links = []
        for link in self.links:
            best = min(other.seconds(link) for other in dense.values())
            links.append({
                "link": link.name, "microseconds": short(1e6 * exchange.seconds(link)),
                "speedup": short(best / exchange.seconds(link)),
            })  # fmt: skip
        return {**out, "links": links}


def codec_seconds(name: str, operations: Mapping[str, Row], column: str = "microseconds") -> float | None:
    """Encoding, with error feedback where the recipe has a memory, and decoding; None if one was not measured."""
    wanted = ENCODE if method(name) == variants(name)[0] or FEEDBACK not in operations else FEEDBACK
    if wanted not in operations or DECODE not in operations:
        return None
    return sum(float(operations[operation][column]) for operation in (wanted, DECODE)) / 1e6


def read_times(path: Path) -> CodecTimes:
    """The times of a document of ``grace bench codecs --device cuda``.

    Raises:
        InputError: it is none.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if (document["schema"], document["version"]) != (SCHEMA, VERSION):
            raise ValueError(
                f"schema {document['schema']!r}, version {document['version']!r}; legal: {SCHEMA!r}, {VERSION}"
            )
        device, workers = str(document["environment"]["device"]), int(document["plan"]["workers"])
        if device == "cpu":
            raise ValueError("it was measured on a processor; legal: a document of --device cuda")
        return CodecTimes(path, device, workers, *_times_of(document))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"{path} has no codecs of a GPU ({type(error).__name__}: {error}); grace bench codecs --device cuda --out FOLDER "
            "writes FOLDER/codecs.json"
        ) from error


def _times_of(document: Mapping[str, Any]) -> tuple[dict[str, dict[int, float]], float]:
    """Seconds of the GPU's for encoding and decoding, by method and size; and those of ``y.add_(x)`` for a number."""
    operations_of: dict[tuple[str, int], dict[str, Any]] = {}
    for row in document["rows"]:
        operations_of.setdefault((str(row["method"]), int(row["size"])), {})[row["operation"]] = row
    times: dict[str, dict[int, float]] = {}
    for (name, size), operations in operations_of.items():
        seconds = codec_seconds(name, operations, "busy_microseconds")
        if seconds is not None:
            times.setdefault(name, {})[size] = seconds
    if "bf16" not in times:
        raise ValueError("bf16 is missing, with which others are compared")
    adds = [row for row in document["yardsticks"] if row["operation"] == ADD]
    last = max(adds, key=lambda row: int(row["size"]))
    return times, 1e-6 * float(last["microseconds"]) / int(last["size"])
