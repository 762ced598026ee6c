"""The algorithms of gossip, as conversations about one tensor: what a worker sends, hears, and goes on with.

Before anything is sent, all workers agree whether their numbers are finite: one small all-reduce, in which all tensors of a
model share one collective. If one worker's are not, all leave the tensor as it is: a worker that skipped it alone would
change the average.

Letters: x [n] a worker's numbers; w_ij the weight with which worker i hears j; C a compressor, by whose wire the same numbers
are read wherever it is decoded; gamma the step size.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Permute, Traffic, cost
from grace.contract.compressor import Compressor
from grace.contract.conversation import Conversation
from grace.contract.knobs import Share, as_call, check_knobs
from grace.contract.peer import Peer
from grace.errors import CompositionError, StepMismatch
from grace.flags.finite import Flag, ask_host
from grace.gossip.graph import Graph
from grace.kernels.finite import all_finite


class Mixed(NamedTuple):
    """Result of a step for one worker: x after mixing, in storage of its own; the state; False for ``finite`` if some worker's
    numbers were not, and x and state are as they came.
    """

    mean: Tensor
    state: Any
    finite: bool = True


@dataclass(frozen=True)
class DPSGD(Conversation[None]):
    """D-PSGD: every worker goes on with the weighted average of its own numbers and its neighbours', uncompressed.

    ``x_i = x_i + gamma (sum_j w_ij x_j - x_i)``

    Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS 2017, arXiv 1705.09056.

    Args:
        graph: who hears whom; it may differ from step to step.
        gamma: step size, in (0, 1].
    """

    graph: Graph
    gamma: Share = 1.0

    def exchange(self, x: Tensor, state: None, peer: Peer) -> Exchange[Mixed]:
        if not (yield from _agree(all_finite(x), x, peer)):
            return Mixed(x, state, False)
        numbers = x.reshape(-1)
        total = numbers * (1 - self.gamma * (1 - self.graph.own(peer.step, peer.rank)))
        for turn in self.graph.rounds(peer.step):
            theirs = yield Permute(numbers, turn.pairs)
            if weight := turn.weights[peer.rank]:
                total += theirs * (self.gamma * weight)
        return Mixed(total.view(x.shape), state)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic:
        return _traffic(self.graph, torch.empty(like.numel(), dtype=like.dtype, device="meta"), peer)


class ChocoState(NamedTuple):
    """h: what the others know of this worker; s: the weighted average of what this one knows of all. Float32, like x."""

    h: Tensor
    s: Tensor


@dataclass(frozen=True)
class Compressed(Conversation[Any], abc.ABC):
    """Base class of algorithms that send compressed numbers.

    Args:
        graph: who hears whom.
        compressor: C.
        gamma: step size, in (0, 1].

    Raises:
        CompositionError: a compressor whose wires are votes.
    """

    graph: Graph
    compressor: Compressor
    gamma: Share

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.compressor.aggregation == "majority":
            raise CompositionError(
                f"gossip: {as_call(self.compressor)} is decided by a majority vote, whose answer has no magnitude; legal: "
                "compressors that average, such as efsignsgd"
            )

    def _mix(self, rows: Tensor, out: Tensor, peer: Peer) -> Exchange[Tensor | None]:
        """Sends C of ``rows [1, n]`` float32, which are donated, and adds ``sum_j w_ij C_j`` of all that are heard, this
        worker included, to ``out [1, n]``. Returns this worker's C, ``[1, n]``; None if some worker's numbers are not finite,
        and then nothing was sent, and ``out`` is as it was.
        """
        compressor = self.compressor
        private = compressor.randomness == "private"
        rng = peer.private(compressor.id).fork(0) if private else peer.shared(compressor.id)
        wire, finite = compressor.encode_(rows, rng)
        own, fine = torch.zeros_like(out), ask_host(finite)
        if fine:  # else the wire means nothing
            fine = ask_host(all_finite(self._decode(wire, own, peer, 1.0)))  # the bits that others read
        width = yield from _agree(fine, out, peer, wire.shape[1])
        if not width:
            return None
        out += own * self.graph.own(peer.step, peer.rank)
        if wire.shape[1] < width:  # another worker's is longer
            wire = torch.nn.functional.pad(wire, (0, width - wire.shape[1]))
        for turn in self.graph.rounds(peer.step):
            theirs = yield Permute(wire, turn.pairs)
            if weight := turn.weights[peer.rank]:
                self._decode(theirs, out, peer, weight)
        return own

    def _decode(self, wire: Tensor, out: Tensor, peer: Peer, scale: float) -> Tensor:
        """Adds ``scale`` times what a wire ``[1, w]`` says to ``out [1, n]``; returns it."""
        self.compressor.decompress_add_(wire, out, scale, peer.shared(self.compressor.id))
        return out

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self.compressor.facts(like.numel()).payload
        if size is None or self.compressor.varies:
            return None
        return _traffic(self.graph, torch.empty(size, dtype=torch.uint8, device="meta"), peer)


@dataclass(frozen=True)
class Choco(Compressed):
    """CHOCO-SGD: what travels is the compressed difference to what the neighbours know already.

    ``q = C(x - h);  h = h + q;  s = s + sum_j w_ij q_j;  x = x + gamma (s - h)``

    As all distances shrink the differences do, so that the workers come together as far as without compression. The graph must
    not change: s is a sum over the past. State: 2 n numbers.

    Koloskova, Stich and Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed Communication",
    ICML 2019, arXiv 1902.00340, algorithm 2, in the form that keeps one sum of all neighbours.

    Args:
        graph: who hears whom, the same in every step.
        compressor: C, whose error must stay below the numbers themselves: what ``with_memory()`` returns.
        gamma: step size, in (0, 1]; too large a one diverges, see the page on gossip.
    """

    def __post_init__(self) -> None:
        Compressed.__post_init__(self)
        if self.graph.varies:
            raise CompositionError(
                f"gossip: choco adds up what it hears over all steps, and the graph {self.graph.name!r} differs from step to "
                "step; legal: ring, torus, exponential, full, or algorithm='dpsgd'"
            )

    def init(self, like: Tensor) -> ChocoState:
        zeros = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
        return ChocoState(zeros, zeros.clone())

    def exchange(self, x: Tensor, state: ChocoState, peer: Peer) -> Exchange[Mixed]:
        s = state.s.clone().view(1, -1)
        q = yield from self._mix((x - state.h).float().reshape(1, -1), s, peer)
        if q is None:
            return Mixed(x, state, False)
        h, s = q.add_(state.h.view(1, -1)).view(x.shape), s.view(x.shape)
        return Mixed(x + (s - h) * self.gamma, ChocoState(h, s))


@dataclass(frozen=True)
class DeepSqueeze(Compressed):
    """DeepSqueeze: what travels is the compressed x, with the error of the last time added.

    ``v = C(x + e);  e = x + e - v;  x = x + gamma (sum_j w_ij v_j - v_i)``

    The distance between the workers levels off where the compression error does. State: n numbers. The graph may differ from
    step to step.

    Tang et al., "DeepSqueeze: Decentralization Meets Error-Compensated Compression", 2019, arXiv 1907.07346; gamma is its eta.

    Args:
        graph: who hears whom.
        compressor: C, as for :class:`Choco`.
        gamma: step size, in (0, 1].
    """

    def init(self, like: Tensor) -> Tensor:
        return torch.zeros(like.shape, dtype=torch.float32, device=like.device)

    def exchange(self, x: Tensor, state: Tensor, peer: Peer) -> Exchange[Mixed]:
        p = (x + state).float().reshape(1, -1)
        total = torch.zeros_like(p)
        v = yield from self._mix(p.clone(), total, peer)
        if v is None:
            return Mixed(x, state, False)
        return Mixed(x + ((total - v) * self.gamma).view(x.shape), (p - v).view(x.shape))


def _agree(finite: Flag, like: Tensor, peer: Peer, width: int = 1) -> Exchange[int]:
    """The largest width of all workers, each at least 1; 0 if some worker's numbers are not finite.

    Raises:
        StepMismatch: on all ranks, if they are at different steps.
    """
    broken = torch.logical_not(torch.as_tensor(finite, device=like.device, dtype=torch.bool))
    told = torch.tensor([0, width, peer.step, -peer.step], dtype=torch.int64, device=like.device)
    told[0] = broken
    any_broken, largest, last, first = (yield AllReduce(told, "max")).tolist()
    if last != -first:
        raise StepMismatch(
            f"gossip: this rank is at step {peer.step}, and others between {-first} and {last}: all ranks must make the same "
            "steps. Give every rank equally many batches, and load the same checkpoint on all"
        )
    return 0 if any_broken else int(largest)


def _traffic(graph: Graph, message: Tensor, peer: Peer) -> Traffic:
    """Traffic of a step in which every round moves a message like this one, of any shape."""
    told = AllReduce(torch.empty(4, dtype=torch.int64, device="meta"), "max")
    costs = [cost(Permute(message, turn.pairs), peer.rank, peer.world) for turn in graph.rounds(peer.step)]
    return sum(costs, cost(told, peer.rank, peer.world))
