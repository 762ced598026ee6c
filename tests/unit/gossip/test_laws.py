"""The laws of gossip; those that are numbered have mutants that break them.

1. The average over the workers stays.
2. The distance to the average shrinks by 1 - gap in each step of uncompressed gossip, and not faster than that allows.
3. One peer after the other averages exactly after log2 W steps.
4. Compressed gossip converges at the rates that were measured for the specification, and diverges beyond them.
5. With an exact compressor it is D-PSGD.
6. It trains: with a step size that decays, workers whose losses have other minima come to the minimum of their mean.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Permute
from grace.contract.conversation import Conversation
from grace.contract.peer import Peer
from grace.errors import PayloadError, StepMismatch
from grace.gossip import DPSGD, Choco, DeepSqueeze, Graph
from grace.gossip.algorithms import Compressed, Mixed
from grace.gossip.graph import Round
from grace.gossip.settings import read_compressor, read_gossip, with_graph
from grace.methods import QSGD, TopK
from grace.methods.none import Identity
from grace.run.simulate import simulate
from tests.unit.gossip.runs import Talks, consensus, distance, draw

RING = Graph.read("ring", 8)
TENTH = TopK(0.1)
DRIFT = 1e-4


def near(measured: float, stated: float) -> bool:
    """Within a factor of ten."""
    return stated / 10 < measured < stated * 10


# ---- vectors --------------------------------------------------------------------------------------------------------
def test_vector_of_choco() -> None:
    talks = Talks(
        Choco(Graph.read("ring", 3), TopK(0.5), 0.5), [torch.tensor(x) for x in ([4.0, 1], [0.0, 0], [-1.0, -3])]
    )
    talks.run()
    torch.testing.assert_close(torch.stack(talks.xs), torch.tensor([[8 / 3, 1 / 2], [2 / 3, -1 / 2], [-1 / 3, -2]]))
    for state, h in zip(talks.states, ([4.0, 0], [0.0, 0], [0.0, -3]), strict=True):
        assert state.h.tolist() == h
        torch.testing.assert_close(state.s, torch.tensor([4 / 3, -1]))


def test_vectors_of_the_others() -> None:
    """By hand: two workers, x = (4, 1) and (0, 2), weights 1/2."""
    pair, xs = Graph.read("ring", 2), [torch.tensor([4.0, 1]), torch.tensor([0.0, 2])]
    assert [x.tolist() for x in Talks(DPSGD(pair, 0.5), xs).run().xs] == [[3, 1.25], [1, 1.75]]
    talks = Talks(DeepSqueeze(pair, TopK(0.5), 0.5), xs).run()  # v = (4, 0), (0, 2); their average is (2, 1)
    assert [x.tolist() for x in talks.xs] == [[3, 1.5], [1, 1.5]]
    assert [e.tolist() for e in talks.states] == [[0, 1], [0, 0]]


# ---- 1. the average -------------------------------------------------------------------------------------------------
EVERY = [
    DPSGD(RING), DPSGD(Graph.read("one_peer_exponential", 8), 0.7), DPSGD(Graph.of_edges(8, [(0, i) for i in range(1, 8)])),
    Choco(RING, TENTH, 0.2), Choco(Graph.read("torus", 8), TENTH, 0.2), Choco(Graph.read("exponential", 8), TENTH, 0.2),
    Choco(RING, read_compressor("qsgd:bits=4"), 0.5), Choco(RING, read_compressor("randomk:ratio=0.1"), 0.05),
    Choco(RING, read_compressor("topk:ratio=0.1,index=rice"), 0.2), Choco(RING, read_compressor("fp16"), 0.5),
    DeepSqueeze(RING, TENTH, 0.1), DeepSqueeze(Graph.read("one_peer_exponential", 8), read_compressor("qsgd:bits=4"), 0.3),
    DeepSqueeze(RING, read_compressor("threshold:v=0.3"), 0.2),
]  # fmt: skip


@pytest.mark.parametrize("talk", EVERY, ids=lambda talk: f"{type(talk).__name__}-{talk.graph.name}")
def test_the_average_stays_and_workers_come_together(talk: Conversation[Any]) -> None:
    shrinks, drift = consensus(talk, 8, steps=60)
    assert drift < DRIFT
    assert shrinks < 0.9


@dataclass(frozen=True)
class Naive(Conversation[None]):
    """The mutant: neighbours average compressed parameters, each beside its own exact ones."""

    graph: Graph
    compressor: Any

    def exchange(self, x: Tensor, state: None, peer: Peer) -> Exchange[Mixed]:
        rng = peer.private(self.compressor.id)
        wire = self.compressor.compress_(x.clone()[None], rng, False)
        total = x * self.graph.own(peer.step, peer.rank)
        for turn in self.graph.rounds(peer.step):
            theirs = yield Permute(wire, turn.pairs)
            self.compressor.decompress_add_(theirs, total[None], turn.weights[peer.rank], rng)
        return Mixed(total, state)

    def traffic(self, like: Tensor, peer: Peer) -> None:
        return None


def test_naive_gossip_drifts() -> None:
    shrinks, drift = consensus(Naive(RING, QSGD(bits=4)), 8)
    assert near(drift, 0.33)
    assert near(shrinks, 1e-2)


class Unbalanced(Graph):
    """The mutant: rows sum to 1, columns do not."""

    def __post_init__(self) -> None: ...


def test_a_graph_whose_columns_do_not_sum_to_one_drifts() -> None:
    star = (Round(((0, 1),), (0.0, 0.5, 0.0)), Round(((0, 2),), (0.0, 0.0, 0.5)))
    assert consensus(DPSGD(Unbalanced("star", 3, (star,))), 3)[1] > 100 * DRIFT


# ---- 2. contraction by the spectral gap -----------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["ring", "exponential", "torus", "full"])
def test_the_distance_shrinks_by_the_spectral_gap(name: str) -> None:
    graph = Graph.read(name, 8)
    assert_contracts(graph, graph.gap)


def assert_contracts(graph: Graph, gap: float) -> None:
    """In each step by 1 - gap at least; and of its slowest mode by no more."""
    talks = Talks(DPSGD(graph), [x.double() for x in draw(8, 50)])
    before = [distance(talks.xs)]

    def check() -> None:
        after = distance(talks.xs)
        assert after <= (1 - gap) ** 2 * before[0] + 1e-20
        before[0] = after

    talks.run(12, check)
    _, vectors = torch.linalg.eigh(graph.matrix() @ graph.matrix().T)
    slow = vectors[:, -2]  # beside the average
    end = Talks(DPSGD(graph), [slow[r].view(1) for r in range(8)]).run().xs
    assert distance(end) == pytest.approx((1 - gap) ** 2 * distance([slow[r].view(1) for r in range(8)]), abs=1e-12)


def test_a_graph_that_mixes_less_is_noticed() -> None:
    lazy = dataclasses.replace(
        RING, cycle=(tuple(dataclasses.replace(turn, weights=(0.3,) * 8) for turn in RING.cycle[0]),)
    )
    with pytest.raises(AssertionError):
        assert_contracts(lazy, RING.gap)


# ---- 3. one peer ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("world", [2, 4, 8, 16])
def test_one_peer_after_the_other_averages_exactly(world: int) -> None:
    graph, xs = Graph.read("one_peer_exponential", world), [torch.tensor([float(r)]) for r in range(world)]
    rounds = int(math.log2(world))
    for start in range(rounds):  # from any step on
        talks = Talks(DPSGD(graph), xs)
        talks.step = start
        talks.run(rounds)
        assert [float(x) for x in talks.xs] == [(world - 1) / 2] * world


def test_it_does_not_with_another_order_or_number_of_workers() -> None:
    """The mutant: the same shift twice."""
    graph = Graph.read("one_peer_exponential", 8)
    twice = dataclasses.replace(graph, cycle=(graph.cycle[0], graph.cycle[1], graph.cycle[1]))
    assert distance(Talks(DPSGD(twice), [torch.tensor([float(r)]) for r in range(8)]).run(3).xs) > 0.1
    six = Graph.read("one_peer_exponential", 6)
    assert distance(Talks(DPSGD(six), [torch.tensor([float(r)]) for r in range(6)]).run(3).xs) > 0.1


# ---- 4. measured rates ----------------------------------------------------------------------------------------------
def test_rates_of_choco() -> None:
    exponential = Graph.read("exponential", 8)
    assert near(consensus(Choco(RING, TENTH, 0.2), 8)[0], 1e-8)
    assert near(consensus(Choco(RING, TENTH, 0.4), 8)[0], 1e-4)
    assert near(consensus(Choco(exponential, TENTH, 0.2), 8)[0], 5e-13)
    fine = read_compressor("qsgd:bits=4")
    assert near(consensus(Choco(RING, fine, 1.0), 8)[0], 1e-10)


def test_too_large_a_step_diverges() -> None:
    """The test of the test."""
    assert consensus(Choco(RING, TENTH, 0.6), 8)[0] > 1
    assert consensus(Choco(Graph.read("exponential", 8), TENTH, 0.4), 8)[0] > 1


def levels_off(talk: Conversation[Any]) -> None:
    """Workers come nearer, to where the compression error keeps them apart; and their average stays."""
    early, late = (consensus(talk, 8, steps) for steps in (200, 400))
    assert near(late[0], 0.02), "the distance"
    assert late[0] > early[0] / 2, "it still falls"
    assert late[0] < 0.05, "it is further apart than what is owed"
    assert late[1] < 10 * DRIFT, "the average"


def test_deepsqueeze_levels_off() -> None:
    levels_off(DeepSqueeze(RING, TENTH, 0.2))


@dataclass(frozen=True)
class KeepsNoError(DeepSqueeze):
    """Forgets what it has not sent."""

    def exchange(self, x: Tensor, state: Tensor, peer: Peer) -> Exchange[Mixed]:
        out = yield from DeepSqueeze.exchange(self, x, state, peer)
        return out._replace(state=torch.zeros_like(x))


@dataclass(frozen=True)
class OwnNumbers(DeepSqueeze):
    """Goes from its own numbers, not from what it has sent of them: ``x + gamma (sum of w v - x)``."""

    def exchange(self, x: Tensor, state: Tensor, peer: Peer) -> Exchange[Mixed]:
        out = yield from DeepSqueeze.exchange(self, x, state, peer)
        sent = x + state - out.state
        return out._replace(mean=out.mean + self.gamma * (sent - x))


@pytest.mark.parametrize(
    ("mutant", "what"), [(Choco, "the distance"), (KeepsNoError, "it is further"), (OwnNumbers, "the average")]
)
def test_what_does_not_level_off_there_is_noticed(mutant: type[Compressed], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        levels_off(mutant(RING, TENTH, 0.2))


@dataclass(frozen=True)
class Forgetful(Choco):
    """The mutant: its neighbours' differences are heard, its own are not."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Mixed]:
        out = yield from Choco.exchange(self, x, state, peer)
        return out._replace(state=out.state._replace(h=state.h))


def test_a_worker_that_forgets_what_it_sent_is_noticed() -> None:
    assert consensus(Forgetful(RING, TENTH, 0.2), 8)[0] > 1e-3


# ---- 5. exact compressors -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("exact", [Identity(), TopK(1.0)])
def test_with_an_exact_compressor_it_is_dpsgd(exact: Any) -> None:
    xs = draw(8, 100)
    plain = Talks(DPSGD(RING), xs).run(5).xs
    for talk in (Choco(RING, exact, 1.0), DeepSqueeze(RING, exact, 1.0)):
        for x, y in zip(Talks(talk, xs).run(5).xs, plain, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)
    off = Talks(Choco(RING, TopK(0.9), 1.0), xs).run(5).xs
    assert any(not torch.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(off, plain, strict=True))


# ---- 6. training -----------------------------------------------------------------------------------------------------
def off_the_optimum(talk: Conversation[Any], steps: int = 300) -> float:
    """The loss of worker i is ``|x - b_i|^2 / 2``, that of all together least at the mean of b: the largest squared distance
    to it of a worker, relative to that at the start.
    """
    b = draw(8, 200)
    best, talks = sum(b) / 8, Talks(talk, [torch.zeros(200)] * 8)
    for t in range(steps):
        lr = 0.5 / (1 + 0.1 * t)
        talks.xs = [x - lr * (x - own) for x, own in zip(talks.xs, b, strict=True)]
        talks.run()
    return max(float((x - best).square().sum()) for x in talks.xs) / float(best.square().sum())


def test_workers_with_other_minima_come_to_that_of_all() -> None:
    assert off_the_optimum(DPSGD(RING)) < 0.02
    soon, late = (off_the_optimum(Choco(RING, TENTH, 0.2), steps) for steps in (300, 900))
    assert late < soon / 2 < 0.2
    assert off_the_optimum(DPSGD(RING, 1e-3)) > 1  # the mutant: each goes to its own


# ---- inf and NaN, bytes ---------------------------------------------------------------------------------------------
NONFINITE = [DPSGD(RING), Choco(RING, TENTH, 0.2), DeepSqueeze(RING, TENTH, 0.2)]


def nobody_mixes(talk: Conversation[Any]) -> None:
    talks = Talks(talk, draw(8, 60)).run(3)
    before, states, good = talks.xs, talks.states, talks.xs[5].clone()
    bad = list(before)
    bad[5] = good.clone().index_fill_(0, torch.tensor([7]), math.inf)
    talks.xs = bad
    talks.run()
    assert not talks.finite
    for x, y, state, old in zip(talks.xs, bad, talks.states, states, strict=True):
        assert torch.equal(x, y)
        assert state is old
    talks.xs = [good if r == 5 else x for r, x in enumerate(talks.xs)]
    average = sum(talks.xs) / 8
    assert talks.run().finite
    torch.testing.assert_close(sum(talks.xs) / 8, average, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("talk", NONFINITE)
def test_nobody_mixes_what_is_not_finite_on_one_worker(talk: Conversation[Any]) -> None:
    nobody_mixes(talk)


def _asks_nobody(finite: Any, like: Tensor, peer: Peer, width: int = 1) -> Exchange[int]:
    """Each worker knows of itself alone, and goes on."""
    yield AllReduce(torch.zeros(1), "max")
    return width


def _hears_a_sum(finite: Any, like: Tensor, peer: Peer, width: int = 1) -> Exchange[int]:
    """Goes on if some worker is finite."""
    answer = yield AllReduce(torch.tensor([int(bool(finite)), width]), "max")
    return int(answer[1]) if int(answer[0]) else 0


@pytest.mark.parametrize("mutant", [_asks_nobody, _hears_a_sum])
@pytest.mark.parametrize("talk", NONFINITE)
def test_workers_that_mix_it_are_noticed(mutant: Any, talk: Conversation[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.gossip.algorithms._agree", mutant)
    with pytest.raises((AssertionError, PayloadError), match="finite"):
        nobody_mixes(talk)


@dataclass(frozen=True)
class KnowsBefore(Choco):
    """Counts as sent what was not."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Mixed]:
        out = yield from Choco.exchange(self, x, state, peer)
        return out if out.finite else out._replace(state=out.state._replace(h=out.state.h + 1))


@dataclass(frozen=True)
class Pulls(Choco):
    """Leaves its neighbours' state, and moves towards it, nevertheless."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Mixed]:
        out = yield from Choco.exchange(self, x, state, peer)
        return out if out.finite else out._replace(mean=x + (state.s - state.h) * self.gamma)


@pytest.mark.parametrize(("mutant", "message"), [(KnowsBefore, "is "), (Pulls, "torch.equal|equal")])
def test_workers_that_change_with_it_are_noticed(mutant: type[Choco], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        nobody_mixes(mutant(RING, TENTH, 0.2))


def test_bytes_are_those_of_the_wires() -> None:
    like, peer = torch.empty(5000), Peer(2, 8)
    wire = TENTH.facts(5000).payload
    assert Choco(RING, TENTH, 0.2).traffic(like, peer).sent == 2 * wire + 56  # beside the agreement of 32 bytes
    assert DPSGD(RING).traffic(like, peer).sent == 2 * 20_000 + 56
    assert Choco(RING, read_compressor("threshold:v=1"), 0.2).traffic(like, peer) is None


@pytest.mark.parametrize(
    "spec", ["dpsgd", "choco:method=(topk:ratio=0.2)", "deepsqueeze:method=(qsgd:bits=4),gamma=0.3"]
)
def test_workers_at_different_steps_are_told(spec: str) -> None:
    """A worker had a batch fewer: the mixture would be of two steps, by two graphs and two random streams."""
    settings, graph = with_graph(read_gossip(spec), 3)
    x = torch.ones(40, 40)
    talk = settings.conversation(x, graph)
    with pytest.raises(StepMismatch, match=r"others between 4 and 5: all ranks must.*equally many batches"):
        simulate([talk.exchange(x, talk.init(x), Peer(rank, 3, 5 - (rank == 1), "x")) for rank in range(3)])
