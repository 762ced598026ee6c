"""On which links a method pays: exchanges of one tensor, beside dense all-reduces in fp32 and in bf16.

An exchange takes ``codec seconds + 8 moved bytes / link speed``. A method that moves fewer bytes than a dense all-reduce,
but computes longer, is faster below the speed at which both take equally long. Nothing overlaps here, and latency is left
out; in training some of both is hidden, and a codec shares its cores with the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from grace.collectives import Traffic
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.registry import method
from grace.run.simulate import simulate
from grace.transports.traced import Tracer
from grace_bench.codecs.bench import Bench, Row, short
from grace_bench.codecs.cases import variants
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK
from grace_bench.codecs.plan import YARDSTICKS, Plan, by_family
from grace_bench.codecs.room import Room
from grace_bench.network.links import Link
from grace_bench.network.model import line_seconds, wire_bytes

CAST = "bf16"  # always measured: an all-reduce in bf16 includes the cast
_TRACED = 1 << 16  # numbers of the exchange that is counted where bytes depend on the data


@dataclass(frozen=True, slots=True)
class Cost:
    """What one exchange takes of a worker. codec: seconds of computing. moved: bytes that its link moves in one direction."""

    codec: float
    moved: float

    def seconds(self, link: Link) -> float:
        """Seconds over this link."""
        return self.codec + self.moved * line_seconds(link)


def break_even(cost: Cost, dense: Cost) -> float | None:
    """Bits per second of the link below which ``cost`` is less than ``dense``; 0: on no link; None: on any."""
    fewer, longer = dense.moved - cost.moved, cost.codec - dense.codec
    if fewer <= 0:
        return 0.0
    return fewer * _BITS / longer if longer > 0 else None


_BITS = line_seconds(Link("", 1.0))  # on the wire for each byte of a payload, frames included


class WorthBench(Bench):
    """Times the methods of a plan; its document has a list ``worth``, a row for each method, size and number of threads.

    Args:
        plan: what is measured; bf16 is added to it.
        links: on which methods are compared.
        eviction: as for :class:`Bench`.
    """

    def __init__(self, plan: Plan, links: Sequence[Link], eviction: int | None = None):
        super().__init__(replace(plan, methods=by_family([*plan.methods, CAST])), eviction)
        self.links = links
        self._moved: dict[tuple[str, int], int] = {}

    def run_job(self, name: str, room: Room, count: int) -> None:
        before = len(self.lists["rows"])
        super().run_job(name, room, count)
        if name != YARDSTICKS and len(self.lists["rows"]) > before:
            self._moved[name, room.n] = moved_bytes(method(name), room)

    def more(self) -> dict[str, Any]:
        found: dict[tuple[str, int, int], dict[str, Row]] = {}
        for row in self.lists["rows"]:
            found.setdefault((row["method"], row["size"], row["threads"]), {})[row["operation"]] = row
        rows = []
        for (name, size, count), operations in found.items():
            cast = found.get((CAST, size, count), {})
            if (name, size) in self._moved and (codec := _codec_seconds(name, operations)) is not None:
                whole = wire_bytes("AllReduce", 4 * size, self.plan.workers)
                dense = {"fp32": Cost(0.0, whole), CAST: Cost(_codec_seconds(CAST, cast) or 0.0, whole / 2)}
                row = self._row(Cost(codec, self._moved[name, size]), dense)
                rows.append({"method": name, "size": size, "threads": count, **row})
        return {"worth": rows}

    def _row(self, cost: Cost, dense: dict[str, Cost]) -> Row:
        out: Row = {
            "codec_microseconds": short(1e6 * cost.codec),
            "moved_bytes": cost.moved,
            "relative_to_fp32": short(cost.moved / dense["fp32"].moved),
        }
        for name, other in dense.items():
            speed = break_even(cost, other)
            out[f"faster_than_{name}_below"] = None if speed is None else short(speed)
        links = []
        for link in self.links:
            best = min(other.seconds(link) for other in dense.values())
            links.append({
                "link": link.name, "microseconds": short(1e6 * cost.seconds(link)),
                "speedup": short(best / cost.seconds(link)),
            })  # fmt: skip
        return {**out, "links": links}


def _codec_seconds(name: str, operations: dict[str, Row]) -> float | None:
    """Encoding, with error feedback where the recipe has a memory, and decoding; None if one was not measured."""
    wanted = ENCODE if method(name) == variants(name)[0] or FEEDBACK not in operations else FEEDBACK
    if wanted not in operations or DECODE not in operations:
        return None
    return sum(float(operations[one]["microseconds"]) for one in (wanted, DECODE)) / 1e6


def moved_bytes(method: Method[Any], room: Room) -> int:
    """Bytes that one exchange moves in one direction over the busiest link; where they depend on the data, those of an
    exchange of 65,536 such numbers, scaled up.
    """
    peers = [Peer(rank, room.workers, step=1, name="weight") for rank in range(room.workers)]
    like = torch.empty(room.matrix(), device="meta")
    declared = [method.traffic(like, peer) for peer in peers]
    if known := [traffic for traffic in declared if traffic is not None]:
        return _busiest(known)
    small = Room(min(room.n, _TRACED), workers=room.workers)
    rows, columns = small.matrix()
    tracers = [Tracer(peer.rank, peer.world) for peer in peers]
    exchanges = []
    for tracer, peer in zip(tracers, peers, strict=True):
        x = small.gradient(peer.rank).view(-1)[: rows * columns].view(rows, columns)
        exchanges.append(tracer.trace(method.exchange(x, method.init(x), peer)))
    simulate(exchanges)
    return round(_busiest([tracer.traffic for tracer in tracers]) * room.n / small.n)


def _busiest(found: Sequence[Traffic]) -> int:
    return max(max(traffic.sent, traffic.received) for traffic in found)
