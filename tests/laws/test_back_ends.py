"""Operations on a bucket: every back end has the bits of the reference, and a bucket has those of its tensors one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from grace import wire as wires
from grace.compute import backends
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.method import Method
from grace.errors import CompositionError
from grace.kernels import calling_many
from grace.kernels.tensor_list import TensorList
from grace.memories.base import Memory
from grace.random import Stream
from tests.laws.bucket_runs import in_bytes
from tests.laws.cases import CASES
from tests.unit.kernels.native_checks import needs_native

pytestmark = needs_native

SIZES, STEP, WORLD = (1, 2, 40, 41, 257, 7), 3, 3


def compressor_of(method: Method[Any]) -> Compressor | None:
    while isinstance(method, Memory):
        method = method.method
    return getattr(method, "compressor", None)


COMPRESSORS = {
    compressor: spec
    for spec, method in reversed(CASES.items())
    if isinstance(compressor := compressor_of(method), Compressor)
    and (compressor.handles_many and not compressor.varies)
    and None not in [compressor.facts(n).payload for n in SIZES]
}


def stream(compressor: Compressor, t: int, rank: int) -> Stream:
    shared = compressor.randomness == "shared"
    own = Stream(5, compressor.id, f"layer{t}", None if shared else rank, 0)
    return own if shared else own.fork(0)


class Bucket:
    """The tensors of one rank, some of them not finite, whose wires are written and read."""

    def __init__(self, compressor: Compressor, of: list[int], *, memory: bool, rows: int, spoiled: bool):
        self.compressor, self.memory, self.rows, self.of = compressor, memory, rows, of
        self.sizes = [SIZES[t] for t in of]
        self.spoiled = spoiled

    def numbers(self, rank: int, salt: int) -> list[Tensor]:
        out = []
        for t, n in zip(self.of, self.sizes, strict=True):
            x = torch.randn(self.rows, n, generator=torch.Generator().manual_seed(100 * salt + 10 * t + rank))
            x[:, ::3] = -0.0
            if self.spoiled and salt == 0 and rank == 0 and t == 3:
                x[-1, -1] = torch.inf
            out.append(x)
        return out

    def run(self) -> Any:
        """(bytes of each finite tensor's wires, which are finite, the rests, means)"""
        c, W, places, at = self.compressor, WORLD, [], 0
        widths = [c.facts(n).payload or 0 for n in self.sizes]
        for width in widths:
            for _ in range(self.rows):
                places.append(at + 4)
                at += wires.sealed_bytes(width)
        messages, out = torch.zeros(W, at, dtype=torch.uint8), []
        for rank, message in enumerate(messages):
            streams = [stream(c, t, rank) for t in self.of]
            many = TensorList(self.sizes, places, streams, message.device, self.rows)
            xs = self.numbers(rank, 0)
            memories = self.numbers(rank, 1) if self.memory else None
            rests = [torch.empty_like(x) for x in xs] if self.memory else None
            assert many.point(xs, memories, rests)
            if c.takes_work:
                assert many.lend(rests or xs)
            finite = c.encode_many_(message, many, replace(streams[0], step=STEP)).tolist()
            sent = [message[place : place + width] for place, width in
                    zip(places, [w for w in widths for _ in range(self.rows)], strict=True)]  # fmt: skip
            fine = [f for f in finite for _ in range(self.rows)]
            kept = [rest if f else None for rest, f in zip(rests or [], finite, strict=False)]
            out.append(([in_bytes(x) if f else None for x, f in zip(sent, fine, strict=True)], finite, in_bytes(kept)))
            for x, f in zip(sent, fine, strict=True):
                if not f:
                    x.zero_()
        legal = c.aggregate_many_(messages, many, 1 / W, replace(streams[0], step=STEP)).tolist()
        means = [in_bytes(x) if f else None for x, f in zip(xs, out[0][1], strict=True)]
        return out, [ok or not f for ok, f in zip(legal, out[0][1], strict=True)], means

    def alone(self) -> Any:
        """The same, of buckets of one."""
        runs = [
            Bucket(self.compressor, [t], memory=self.memory, rows=self.rows, spoiled=self.spoiled).run()
            for t in self.of
        ]
        sent = [
            ([w for run in runs for w in run[0][rank][0]], [f for run in runs for f in run[0][rank][1]],
             tuple(r for run in runs for r in run[0][rank][2]))
            for rank in range(WORLD)
        ]  # fmt: skip
        return sent, [ok for run in runs for ok in run[1]], [mean for run in runs for mean in run[2]]


def check(compressor: Compressor, rows: int = 1) -> None:
    for memory, spoiled in ((False, False), (True, True)):
        bucket = Bucket(compressor, list(range(len(SIZES))), memory=memory, rows=rows, spoiled=spoiled)
        with backends.using("reference"):
            expected = bucket.run()
            assert bucket.alone() == expected, "buckets of one, by the reference"
        with backends.using("native"):
            assert bucket.run() == expected, "native"
            assert bucket.alone() == expected, "native buckets of one"


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: COMPRESSORS[c])
def test_back_ends_agree(compressor: Compressor) -> None:
    check(compressor)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: COMPRESSORS[c])
def test_back_ends_agree_on_several_rows(compressor: Compressor) -> None:
    check(compressor, rows=3)


# ---- mutants --------------------------------------------------------------------------------------------------------
def _first_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = calling_many.keys_of
    monkeypatch.setattr(
        "grace.kernels.stochastic_levels.native.keys_of", lambda many, step: lambda t: keys(many, step)(0)
    )


def _step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    run = calling_many.CallTable.run
    monkeypatch.setattr(calling_many.CallTable, "run", lambda self, step=0: run(self, max(0, step - 1)))


def _all_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    run = calling_many._Encoders.run
    monkeypatch.setattr(
        calling_many._Encoders, "run",
        lambda self, message, many, step: run(self, message, many, step) | many.all_set,
    )  # fmt: skip


def _memory_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling_many, "MEMORY", None)


def _senders_reversed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = calling_many._Decoders.__init__

    def init(self: Any, *args: Any) -> None:
        make(self, *args)
        self._senders = self._senders.flip(0)

    monkeypatch.setattr(calling_many._Decoders, "__init__", init)


def _places_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    make = calling_many._Encoders.__init__

    def init(self: Any, *args: Any) -> None:
        make(self, *args)
        self._firsts = [self._firsts[0]] * len(self._firsts)

    monkeypatch.setattr(calling_many._Encoders, "__init__", init)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _first_key, _step_before, _all_finite, _memory_left_out, _senders_reversed, _places_of_the_first,
]  # fmt: skip
WITNESS = next(c for c, spec in COMPRESSORS.items() if spec.startswith("qsgd:bits=4,bucket=32"))


def test_the_witness_is_native() -> None:
    with backends.using("native"):
        assert calling_many.possible()
        check(WITNESS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_are_caught(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check(WITNESS)


# ---- compressors without kernels ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Plain(Compressor):
    """Sends numbers as they are, in float64, and claims so many bytes for each."""

    claimed: int = 8

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        wire = rows.double()
        if keep_rest:
            rows.zero_()
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        out.add_(wire.float() * scale)

    def facts(self, n: int) -> Facts:
        return Facts(payload=self.claimed * n)


def test_a_compressor_without_kernels_is_asked_for_each_tensor() -> None:
    check(Plain())


def test_a_wire_of_another_size_than_claimed_is_refused() -> None:
    with pytest.raises(CompositionError, match=r"has 8 bytes, but facts\(1\)\.payload is 4"):
        check(Plain(4))
