"""Conversations without a promise: a session runs them, and nothing that rests on the promise takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.collectives import Exchange, Permute, Traffic, cost
from grace.contract.knobs import Share
from grace.errors import CompositionError, ConfigurationError
from grace.run.options import Options
from grace.run.session import Session
from grace.run.simulate import simulate
from grace.schedules import Delayed
from grace.transports.alone import Alone
from grace.verify import verify
from tests.unit.networks import in_threads


class Mixed(NamedTuple):
    mean: Tensor
    state: int
    finite: bool = True


@dataclass(frozen=True)
class OnePeer(grace.Conversation[int]):
    """Gossip in pairs: at step t rank r averages with rank r xor 2^(t mod log2 W). Assran et al., "Stochastic Gradient Push",
    ICML 2019, arXiv 1811.10792: after log2 W steps every worker has the mean. The state counts steps.
    """

    weight: Share = 0.5

    def init(self, like: Tensor) -> int:
        return 0

    def pairs(self, peer: grace.Peer) -> tuple[tuple[int, int], ...]:
        shift = 1 << (peer.step % (peer.world.bit_length() - 1))
        return tuple((rank, rank ^ shift) for rank in range(peer.world))

    def exchange(self, x: Tensor, state: int, peer: grace.Peer) -> Exchange[Mixed]:
        theirs = yield Permute(x, self.pairs(peer))
        return Mixed(torch.lerp(x, theirs, self.weight), state + 1)

    def traffic(self, like: Tensor, peer: grace.Peer) -> Traffic:
        return cost(Permute(like, self.pairs(peer)), peer.rank, peer.world)


def own(rank: int) -> Tensor:
    return torch.arange(6.0) * 2**rank


def mean(world: int) -> Tensor:
    return torch.stack([own(rank) for rank in range(world)]).mean(0)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_in_the_simulator_it_averages_in_as_many_rounds_as_the_world_has_bits(world: int) -> None:
    talk, xs, states = OnePeer(), [own(rank) for rank in range(world)], [0] * world
    for step in range(world.bit_length() - 1):
        assert not all(torch.equal(x, xs[0]) for x in xs), "a method's mean would be the same on all ranks"
        peers = [grace.Peer(rank, world, step) for rank in range(world)]
        outs = simulate([talk.exchange(x.clone(), n, peer) for x, n, peer in zip(xs, states, peers, strict=True)])
        xs, states = [out.mean for out in outs], [out.state for out in outs]
        torch.testing.assert_close(torch.stack(xs).mean(0), mean(world))  # doubly stochastic: kept in each round
    for x, n in zip(xs, states, strict=True):
        torch.testing.assert_close(x, mean(world))
        assert talk.kinds(n) == "own"
    assert talk.owed(states[0]) is None


def test_a_session_runs_it_and_counts_it() -> None:
    def work(transport: Any, rank: int) -> Any:
        session = Session({"w": torch.empty(6)}, "none", transport, Options(check=True))
        talk = OnePeer()
        x, state, planned = own(rank), talk.init(own(rank)), Traffic()
        for _ in range(2):
            peer = session.peer("w")
            planned += talk.traffic(x, peer)
            out = session.run(talk.exchange(x, state, peer), counted=True)
            x, state = out.mean, out.state
            session.advance()
        assert session.stats.traffic == planned
        return x.tolist(), state, session.stats.traffic

    expected = (mean(4).tolist(), 2, Traffic(2, 48, 48))
    assert in_threads(4, work) == [expected] * 4


TAKERS = {
    "attach": lambda talk: grace.attach(DistributedDataParallel.__new__(DistributedDataParallel), talk),
    "DistributedOptimizer": lambda talk: grace.DistributedOptimizer(
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1), talk, transport=Alone()
    ),
    "a policy": lambda talk: grace.Policy([("*", talk)]),
    "a session": lambda talk: Session({"w": torch.empty(2)}, talk, Alone()),
    "the simulator": lambda talk: grace.Simulator(talk, 2),
    "a memory": lambda talk: grace.ErrorFeedback(talk),
    "a delay": lambda talk: Delayed(talk, 3),
    "the laws": lambda talk: verify(talk),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_whatever_rests_on_the_promise_refuses_it(taker: str) -> None:
    with pytest.raises(
        CompositionError, match=r"OnePeer\(\) does not promise the same mean on all ranks.*session\.run"
    ):
        TAKERS[taker](OnePeer())


def test_a_method_is_one_that_promises() -> None:
    assert issubclass(grace.Method, grace.Conversation)
    assert isinstance(grace.method("topk"), grace.Conversation)


def test_its_knobs_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"OnePeer: weight=2 is out of range; legal: 0 < weight <= 1"):
        OnePeer(weight=2)
