"""The laws of a method between machines, whose workers average in full precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import AllGather, Exchange, ReduceScatter, along
from grace.communicators import Hierarchical
from grace.communicators.hierarchical import HierarchicalState
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.run.simulator import Simulator
from grace.verify import laws
from grace.verify.inputs import HUGE, UGLY, normal

SPREAD = True
INNER = (
    "none", "bf16", "topk:ratio=0.2", "topk:ratio=0.2,memory=none", "qsgd:bits=3", "qsgd:bits=3,communicator=scatterreduce",
    "efsignsgd", "signsgd", "powersgd:rank=1,min_rate=0.1", "randomk:ratio=0.2", "threshold:v=0.1", "dgc:ratio=0.2",
    "topk:ratio=0.2,memory=ef21", "topk:ratio=0.2,beta=0.5", "topk:ratio=0.2,follow_lr=true",
    "efsignsgd:communicator=scatterreduce,server_memory=true",
)  # fmt: skip
GRIDS = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (2, 3), (2, 4))  # machines, workers of each
every = pytest.mark.parametrize("spec", INNER)


def between(spec: str, machine: int) -> Any:
    return grace.method(f"{spec}{',' if ':' in spec else ':'}machine={machine}")


def inputs(spec: str, *names: str) -> Iterator[tuple[Any, list[Tensor]]]:
    """Each input on one grid, which moves on from input to input and from method to method."""
    for i, name in enumerate(names or UGLY):
        machines, machine = GRIDS[(INNER.index(spec) + i) % len(GRIDS)]
        yield between(spec, machine), [UGLY[name](rank) for rank in range(machines * machine)]


@every
def test_agreement(spec: str) -> None:
    for method, xs in inputs(spec):
        laws.agreement(method, xs)
    laws.agreement(between(spec, 2), [HUGE(rank) for rank in range(4)])


@every
def test_traffic_is_what_is_declared(spec: str) -> None:
    for method, xs in inputs(spec, "one element", "0-d", "empty", "f16", "f64", "channels last", "zeros", "normal"):
        laws.traffic(method, xs)


@pytest.mark.parametrize(
    "spec", [spec for spec in INNER if isinstance(grace.method(spec), grace.ErrorFeedback) and "beta" not in spec]
)
def test_nothing_is_lost(spec: str) -> None:
    for method, xs in inputs(spec):
        laws.nothing_lost(method, [[x * (1 - 0.5 * t) for x in xs] for t in range(3)])


@every
def test_fused_equals_alone(spec: str) -> None:
    method = between(spec, 2)
    laws.fused_equals_alone(
        [method, grace.method("none"), method],
        [[make(rank) for rank in range(4)] for make in (normal(13, 7), normal(5), normal(31))],
    )


@every
def test_answers_may_lie_in_donated_buffers(spec: str) -> None:
    for name in ("normal", "odd size", "f16", "f64", "non-contiguous"):
        laws.answers_may_alias(between(spec, 2), [UGLY[name](rank) for rank in range(4)])


@every
def test_state_survives(spec: str) -> None:
    laws.state_survives(between(spec, 2), [[normal(9, 8)(10 * t + r) for r in range(4)] for t in range(4)], stop=2)


@every
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_nonfinite_is_agreed_and_no_memory_moves(spec: str, bad: float) -> None:
    for method, xs in inputs(spec, "normal", "f16", "0-d", "one element", "f64", "zeros"):
        steps = [xs, [x * 2 for x in xs], [-x for x in xs]]
        laws.nonfinite_is_agreed(method, steps, bad, rank=len(xs) - 1, at=xs[0].numel() // 2)


@every
def test_a_failure_leaves_the_memory(spec: str) -> None:
    laws.failure_leaves_memory(between(spec, 2), [normal(9, 8)(rank) for rank in range(4)])


@pytest.mark.parametrize(("machines", "machine"), GRIDS)
def test_full_precision_inside_is_a_plain_mean(machines: int, machine: int) -> None:
    xs = [normal(13, 7)(rank) for rank in range(machines * machine)]
    for out in laws.run(between("none", machine), xs):
        torch.testing.assert_close(out.mean, sum(xs) / len(xs))


def test_the_method_sees_the_mean_of_its_machine() -> None:
    """The part of one worker of it is as if the machines were the workers."""
    xs = [normal(6, 4)(rank) for rank in range(6)]
    means = [(xs[2 * machine] + xs[2 * machine + 1]) / 2 for machine in range(3)]
    seen = laws.run(between("topk:ratio=0.25,memory=none", 2), xs)[0].mean.view(2, -1)
    for part in range(2):
        alone = laws.run(grace.method("topk:ratio=0.25,memory=none"), [mean.view(2, -1)[part] for mean in means])[
            0
        ].mean
        torch.testing.assert_close(seen[part], alone)


def test_what_needs_a_matrix_is_given_rows() -> None:
    method = between("powersgd:rank=1,min_rate=0.1", 2)
    assert {leaf.shape[0] for leaf in laws.leaves(method.init(torch.empty(7, 5)))} == {4, 5}


def test_what_memories_owe_is_handed_on_when_methods_change() -> None:
    sim = Simulator(grace.Policy([("*", "topk:ratio=0.1,machine=2")]), 4)
    truth, applied = torch.zeros(10, 7), torch.zeros(10, 7)
    for step in range(6):
        given = [normal(10, 7)(10 * step + rank) for rank in range(4)]
        truth += sum(given) / 4
        applied += sim.step({"w": given})["w"]
        if step == 2:
            sim.switch(grace.Policy([("*", "none")]))
    torch.testing.assert_close(applied, truth, atol=1e-5, rtol=0)


# ---- mutants --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Mutant(Hierarchical):
    """To derive from."""


class SumsInside(Mutant):
    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        return (yield from Hierarchical.exchange(self, x * self.machine, state, peer))


class OwesItsPartOnce(Mutant):
    def owed(self, state: Any) -> Tensor | None:
        owed = Hierarchical.owed(self, state)
        return None if owed is None else owed / self.machine


class ForgetsItsPlace(Mutant):
    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from Hierarchical.exchange(self, x, state, peer)
        return replace(out, state=out.state._replace(place=0))


class MovesItsMemory(Mutant):
    """A part that was finite keeps what it owes after a step that was not applied."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        place, part = peer.axes["machine"][0], self._cut(x.clone(), None)
        part_mean = yield ReduceScatter(part, "mean", axis="machine")
        out = yield from along(self.method.exchange(part_mean, state.inner, peer.on("machines")), "machines")
        parts = yield AllGather(out.mean, axis="machine")
        mean = parts.view(-1)[: x.numel()].view(x.shape)
        finite = bool(mean.isfinite().all())
        after = HierarchicalState(out.state, place, state.shape)
        return Exchanged(mean if finite else mean.fill_(math.nan), None, after, finite)


class SendsHalfAsMuch(Mutant):
    def traffic(self, like: Tensor, peer: Peer) -> Any:
        declared = Hierarchical.traffic(self, like, peer)
        return None if declared is None else replace(declared, sent=declared.sent // 2)


class MeetsOtherParts(Mutant):
    """Its parts lie in another order on every machine."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        turned = x.roll(peer.axes["machines"][0], 0) if x.ndim else x
        return (yield from Hierarchical.exchange(self, turned, state, peer))


def lost(method: Any) -> None:
    xs = [normal(6, 4)(rank) for rank in range(4)]
    laws.nothing_lost(method, [[x * (1 - 0.5 * t) for x in xs] for t in range(3)])


def agreed(method: Any) -> None:
    xs = [normal(6, 4)(rank) for rank in range(4)]
    laws.nonfinite_is_agreed(method, [xs, [x * 2 for x in xs], [-x for x in xs]], math.inf, rank=1, at=23)


def declared(method: Any) -> None:
    laws.traffic(method, [normal(6, 4)(rank) for rank in range(4)])


@pytest.mark.parametrize(
    ("law", "mutant", "message"),
    [
        (lost, SumsInside, "off the gradients"),
        (lost, OwesItsPartOnce, "off the gradients"),
        (lost, ForgetsItsPlace, "off the gradients"),
        (lost, MeetsOtherParts, "off the gradients"),
        (agreed, MovesItsMemory, "changed|moved|state"),
        (declared, SendsHalfAsMuch, "declares"),
    ],
)
def test_the_law_catches_the_mutant(law: Any, mutant: Any, message: str) -> None:
    inner = grace.method("topk:ratio=0.2")
    law(Hierarchical(inner, 2))
    with pytest.raises(AssertionError, match=message):
        law(mutant(inner, 2))
